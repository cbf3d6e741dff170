"""Trains one of the networks in MindSpore for a step or two, from the weights of the PyTorch run, and records it.

python examples/migration/train_mindspore.py gpt --weights gpt.pt --dump-path ./mindspore_gpt
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module

import mindspore as ms
import numpy as np
from data import NETWORKS, make_batch
from mindspore import Tensor, nn

from tensorprobe.migrator import convert_weight
from tensorprobe.mindspore import PrecisionDebugger, seed_all

Loss = Callable[[nn.Cell, Tensor, Tensor], Tensor]


def build(name: str) -> tuple[nn.Cell, Loss]:
    """The network, and the function that computes its loss."""
    module = import_module(f"{name}_mindspore")
    return module.Network(), module.compute_loss


def train(debugger: PrecisionDebugger, name: str, network: nn.Cell, compute_loss: Loss, steps: int) -> list[float]:
    """The losses."""
    network.set_train()
    optimizer = nn.SGD(network.trainable_params(), learning_rate=0.05)
    compute = ms.value_and_grad(lambda *batch: compute_loss(network, *batch), None, optimizer.parameters)
    losses = []
    for step in range(steps):
        inputs, labels = make_batch(name, step)
        debugger.start(network)
        loss, gradients = compute(Tensor(inputs), Tensor(labels.astype(np.int32)))
        debugger.stop()
        optimizer(gradients)
        debugger.step()
        losses.append(float(loss.asnumpy()))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description="Train one of the networks in MindSpore and record it.")
    parser.add_argument("network", choices=(*NETWORKS, "cnn_draft"))
    parser.add_argument("--weights", required=True, help="the weights that the PyTorch run started with")
    parser.add_argument("--steps", type=int, default=1, help="how many training steps (default 1)")
    parser.add_argument(
        "--dump-path", default="./mindspore_dump", help="where the dump goes (default ./mindspore_dump)"
    )
    parser.add_argument("--level", default="mix", help="L0: cells; L1: API calls; mix: both (default mix)")
    parser.add_argument("--task", default="tensor", help="tensor or statistics (default tensor)")
    arguments = parser.parse_args()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.runtime.launch_blocking()  # before the first operation: looking at a result then costs little
    seed_all(1234, rm_dropout=True)  # no two frameworks draw the same numbers
    network, compute_loss = build(arguments.network)
    print(convert_weight(arguments.weights, network, load=True).report)
    debugger = PrecisionDebugger(dump_path=arguments.dump_path, level=arguments.level, task=arguments.task)
    for step, loss in enumerate(train(debugger, arguments.network, network, compute_loss, arguments.steps)):
        print(f"step {step}: loss {loss:.6f}")


if __name__ == "__main__":
    main()
