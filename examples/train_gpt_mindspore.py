"""A small GPT on random data, in MindSpore's PyNative mode, recorded by tensorprobe.

python examples/train_gpt_mindspore.py --task tensor --dump-path ./good
python examples/train_gpt_mindspore.py --task tensor --dump-path ./bad --fault
tensorprobe compare ./good ./bad
"""

from __future__ import annotations

import argparse
import logging

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from tensorprobe.mindspore import PrecisionDebugger, seed_all

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 96, 32, 64, 4, 2, 4


class Attention(nn.Cell):
    def __init__(self, has_fault: bool = False) -> None:
        super().__init__()
        self.has_fault = has_fault
        self.qkv = nn.Dense(WIDTH, 3 * WIDTH)
        self.out = nn.Dense(WIDTH, WIDTH)
        self.future = ms.Tensor(np.triu(np.ones((CONTEXT, CONTEXT), bool), k=1))

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        batch, tokens, _ = x.shape
        parts = self.qkv(x).reshape(batch, tokens, 3, HEADS, WIDTH // HEADS).transpose(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        scores = ops.matmul(query, key.swapaxes(-1, -2)) / (WIDTH // HEADS) ** 0.5
        mixed = ops.matmul(ops.softmax(scores.masked_fill(self.future, float("-inf")), axis=-1), value)
        if not self.has_fault:  # without this the shapes still fit, and the heads are mixed up
            mixed = mixed.swapaxes(1, 2)
        return self.out(mixed.reshape(batch, tokens, WIDTH))


class Block(nn.Cell):
    def __init__(self, has_fault: bool = False) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm((WIDTH,))
        self.attention = Attention(has_fault)
        self.norm_2 = nn.LayerNorm((WIDTH,))
        self.mlp = nn.SequentialCell(nn.Dense(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dense(4 * WIDTH, WIDTH))

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Cell):
    def __init__(self, has_fault: bool = False) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.dropout = nn.Dropout(p=0.1)
        self.blocks = nn.CellList([Block(has_fault and layer == LAYERS - 1) for layer in range(LAYERS)])
        self.norm = nn.LayerNorm((WIDTH,))
        self.head = nn.Dense(WIDTH, VOCABULARY, has_bias=False)

    def construct(self, tokens: ms.Tensor) -> ms.Tensor:
        x = self.dropout(self.token(tokens) + self.position(ops.arange(tokens.shape[1])))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train(debugger: PrecisionDebugger, steps: int, has_fault: bool) -> None:
    model = GPT(has_fault)
    model.set_train()
    optimizer = nn.AdamWeightDecay(model.trainable_params(), learning_rate=1e-3)

    def forward(inputs: ms.Tensor, targets: ms.Tensor) -> ms.Tensor:
        return ops.cross_entropy(model(inputs).reshape(-1, VOCABULARY), targets.reshape(-1))

    forward_backward = ms.value_and_grad(forward, None, optimizer.parameters)
    for step in range(steps):
        tokens = ms.Tensor(np.random.randint(VOCABULARY, size=(BATCH, CONTEXT + 1)).astype(np.int32))
        debugger.start(model)
        loss, gradients = forward_backward(tokens[:, :-1], tokens[:, 1:])
        debugger.stop()
        optimizer(gradients)
        debugger.step()
        print(f"step {step}: loss {float(loss.asnumpy()):.6f}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small GPT on random data and record it.")
    parser.add_argument("--steps", type=int, default=2, help="how many training steps (default 2)")
    parser.add_argument("--dump-path", default="./dump_path", help="where the dump goes (default ./dump_path)")
    parser.add_argument("--level", default="mix", help="L0: cells; L1: API calls; mix: both (default mix)")
    parser.add_argument("--task", default="statistics", help="statistics, tensor or structure (default statistics)")
    parser.add_argument("--fault", action="store_true", help="forget a transpose in the attention of the last block")
    parser.add_argument("--seed", type=int, default=1234, help="of every random generator (default 1234)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # tensorprobe says where the dump is
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.runtime.launch_blocking()  # before the first operation: looking at a result then costs little
    seed_all(arguments.seed)
    debugger = PrecisionDebugger(dump_path=arguments.dump_path, level=arguments.level, task=arguments.task)
    train(debugger, arguments.steps, arguments.fault)


if __name__ == "__main__":
    main()
