"""A small GPT with attention written out, in `mint` and `ops` of MindSpore; gpt_pytorch.py is the same in PyTorch."""

from __future__ import annotations

import math

import mindspore
from mindspore import Tensor, mint, nn, ops
from mindspore.mint.nn import functional as F


class Attention(nn.Cell):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = mint.nn.Linear(width, 3 * width)
        self.c_proj = mint.nn.Linear(width, width)

    def construct(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        size = width // self.heads
        query, key, value = mint.chunk(self.c_attn(x), 3, dim=-1)
        query = mint.reshape(query, (batch, length, self.heads, size)).swapaxes(1, 2)
        key = mint.reshape(key, (batch, length, self.heads, size)).swapaxes(1, 2)
        value = mint.reshape(value, (batch, length, self.heads, size)).swapaxes(1, 2)
        scores = mint.matmul(query, key.swapaxes(-1, -2)) / math.sqrt(size)
        future = mint.triu(mint.ones((length, length), dtype=mindspore.bool_), diagonal=1)
        weights = F.softmax(scores.masked_fill(future, float("-inf")), dim=-1)
        mixed = mint.matmul(weights, value)
        return self.c_proj(mixed.swapaxes(1, 2).reshape(batch, length, width))


class Block(nn.Cell):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.up = mint.nn.Linear(width, 4 * width)
        self.down = mint.nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(p=0.1)

    def construct(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        y = ops.gelu(self.up(self.ln_2(x)), approximate="tanh")
        return x + self.dropout(self.down(y))


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(48, 32)
        self.wpe = nn.Embedding(10, 32)
        self.blocks = nn.CellList([Block(32, 4) for _ in range(2)])
        self.ln_f = nn.LayerNorm((32,), epsilon=1e-5)
        self.lm_head = mint.nn.Linear(32, 48, bias=False)

    def construct(self, tokens: Tensor) -> Tensor:
        places = ops.arange(tokens.shape[1])
        x = self.wte(tokens) + self.wpe(places)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def compute_loss(network: nn.Cell, tokens: Tensor, labels: Tensor) -> Tensor:
    logits = network(tokens)
    return ops.cross_entropy(logits.reshape(-1, 48), labels.reshape(-1))
