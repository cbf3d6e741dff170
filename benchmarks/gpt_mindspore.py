"""The program that the benchmarks run, in MindSpore: one training step of the GPT of gpt.py, in its size for a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.graph.api import _pynative_executor


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    heads: int
    batch: int
    tokens: int
    words: int


CPU = Size(layers=6, width=256, heads=8, batch=4, tokens=128, words=1024)


class Block(nn.Cell):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.future = ms.Tensor(np.triu(np.ones((size.tokens, size.tokens), bool), k=1))
        self.norm_1 = nn.LayerNorm((size.width,))
        self.qkv = nn.Dense(size.width, 3 * size.width)
        self.out = nn.Dense(size.width, size.width)
        self.norm_2 = nn.LayerNorm((size.width,))
        self.up = nn.Dense(size.width, 4 * size.width)
        self.gelu = nn.GELU()
        self.down = nn.Dense(4 * size.width, size.width)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm_1(x)).split(width, axis=2)
        query, key, value = (part.reshape(batch, tokens, self.heads, -1).swapaxes(1, 2) for part in parts)
        scores = ops.matmul(query, key.swapaxes(-1, -2)) / (width // self.heads) ** 0.5
        mixed = ops.matmul(ops.softmax(scores.masked_fill(self.future, float("-inf")), axis=-1), value)
        x = x + self.out(mixed.swapaxes(1, 2).reshape(batch, tokens, width))
        return x + self.down(self.gelu(self.up(self.norm_2(x))))


class GPT(nn.Cell):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(size.words, size.width)
        self.places = nn.Embedding(size.tokens, size.width)
        self.blocks = nn.CellList([Block(size) for _ in range(size.layers)])
        self.norm = nn.LayerNorm((size.width,))
        self.head = nn.Dense(size.width, size.words, has_bias=False)

    def construct(self, tokens: ms.Tensor) -> ms.Tensor:
        x = self.words(tokens) + self.places(ops.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@dataclass(frozen=True)
class Program:
    """One training step, in its two halves."""

    model: nn.Cell
    forward_backward: Callable[[], tuple[ms.Tensor, tuple[ms.Tensor, ...]]]
    update: Callable[[tuple[ms.Tensor, ...]], object]
    wait: Callable[[], None]
    """Until what was begun is done."""


def make_program(size: Size) -> Program:
    """Always the same weights and the same batch."""
    ms.set_seed(0)
    model = GPT(size)
    model.set_train()
    optimizer = nn.AdamWeightDecay(model.trainable_params(), learning_rate=1e-4)
    chance = np.random.default_rng(0)
    tokens = ms.Tensor(chance.integers(0, size.words, (size.batch, size.tokens + 1)).astype(np.int32))

    def forward(inputs: ms.Tensor, targets: ms.Tensor) -> ms.Tensor:
        return ops.cross_entropy(model(inputs).reshape(-1, size.words), targets.reshape(-1))

    with_gradients = ms.value_and_grad(forward, None, optimizer.parameters)
    return Program(model, lambda: with_gradients(tokens[:, :-1], tokens[:, 1:]), optimizer, _pynative_executor.sync)
