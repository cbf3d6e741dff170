"""Small models of each kind, with random weights, their losses and three batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, mint, nn, ops

Prepared = tuple[Any, Callable[[Any, Any], Any], list[Any]]


class Attention(nn.Cell):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Dense(width, 3 * width)
        self.proj = mint.nn.Linear(width, width)
        self.drop = nn.Dropout(p=0.1)

    def construct(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = ops.split(self.qkv(x), width, axis=-1)
        q, k, v = (part.reshape(batch, length, self.heads, -1).transpose(0, 2, 1, 3) for part in parts)
        scores = ops.matmul(q, k.swapaxes(-2, -1)) / (width / self.heads) ** 0.5
        weights = self.drop(ops.softmax(scores.masked_fill(mask, -1e9), axis=-1))
        return self.proj(mint.matmul(weights, v).transpose(0, 2, 1, 3).reshape(batch, length, width))


class Block(nn.Cell):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm((width,))
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm((width,))
        self.mlp = nn.SequentialCell(nn.Dense(width, 2 * width), nn.GELU(), nn.Dense(2 * width, width))

    def construct(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Cell):
    def __init__(self, vocabulary: int = 17, width: int = 16, depth: int = 2, length: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.CellList([Block(width, 2) for _ in range(depth)])
        self.head = nn.Dense(width, vocabulary, has_bias=False)
        self.mask = Tensor(np.triu(np.ones((length, length), bool), 1))

    def construct(self, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(x), {"hidden": x}


class ConvolutionalNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, has_bias=True)
        self.norm = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc = nn.Dense(4 * 4 * 4, 5)

    def construct(self, image: Tensor) -> Tensor:
        x = self.pool(ops.relu(self.norm(self.conv(image))))
        return self.fc(x.reshape(x.shape[0], -1))


class Recurrent(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, num_layers=2, batch_first=True, bidirectional=True)
        self.fc = nn.Dense(12, 3)

    def construct(self, x: Tensor) -> Tensor:
        output, (hidden, _) = self.lstm(x)
        return self.fc(output[:, -1]) + hidden.sum()


def transformer() -> Prepared:
    loss = nn.CrossEntropyLoss()

    def loss_of(model: Any, tokens: Tensor) -> Tensor:
        logits, extra = model(tokens)
        return loss(logits.reshape(-1, logits.shape[-1]), tokens.reshape(-1)) + 1e-3 * (extra["hidden"] ** 2).mean()

    batches = [Tensor(np.random.randint(0, 17, (2, 6)), mindspore.int32) for _ in range(3)]
    return Transformer(), loss_of, batches


def cnn() -> Prepared:
    batches = [Tensor(np.random.randn(2, 3, 8, 8).astype(np.float32)) for _ in range(3)]
    return ConvolutionalNet(), lambda model, image: (model(image) ** 2).mean(), batches


def lstm() -> Prepared:
    batches = [Tensor(np.random.randn(2, 5, 4).astype(np.float32)) for _ in range(3)]
    return Recurrent(), lambda model, x: ops.reduce_mean(ops.square(model(x))), batches


MODELS: dict[str, Callable[[], Prepared]] = {"transformer": transformer, "cnn": cnn, "lstm": lstm}
