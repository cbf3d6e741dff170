"""A GPT: tied input and output weights, dropout, token pairs hashed into buckets with integer arithmetic."""

from __future__ import annotations

import math

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.common.initializer import Normal

from fault.mindspore.model.layer import GELU, LOW, Dense, Dropout, LayerNorm, Part, add_residual, make_loss
from fault.place import Plan
from fault.program import Batch, Program

WORDS, BUCKETS, LENGTH, WIDTH, HEADS = 60, 32, 12, 32, 4


class Attention(Part):
    """Written out."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.query, self.key, self.value, self.out = (Dense(plan, WIDTH, WIDTH) for _ in range(4))
        self.dropout = Dropout(plan, 0.1)

    def construct(self, x: Tensor) -> Tensor:
        query = self.split_heads("query heads", self.query(x))
        key = self.split_heads("key heads", self.key(x))
        value = self.split_heads("value heads", self.value(x))
        scores = self.weigh(query, key)
        weights = self.at(
            "softmax",
            lambda: ops.softmax(scores, -1),
            dimension=lambda: ops.softmax(ops.clamp(scores, -1e9, 1e9), -2),
            precision=lambda: ops.softmax(scores.astype(LOW), -1).astype(scores.dtype),
        )
        weights = self.dropout(weights)
        mixed = self.at(
            "mix",
            lambda: ops.matmul(weights, value),
            operand=lambda: ops.matmul(weights, key),
            precision=lambda: ops.matmul(weights.astype(LOW), value.astype(LOW)).astype(value.dtype),
        )
        merged = self.at(
            "merge",
            lambda: mixed.swapaxes(1, 2),
            head=lambda: ops.flip(mixed, (1,)).swapaxes(1, 2),
        )
        return self.out(merged.reshape(x.shape))

    def split_heads(self, site: str, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        size = width // HEADS
        parted = self.at(
            site,
            lambda: x.view(batch, length, HEADS, size),
            head=lambda: x.view(batch, length, size, HEADS).swapaxes(2, 3),
        )
        return ops.transpose(parted, (0, 2, 1, 3))

    def weigh(self, query: Tensor, key: Tensor) -> Tensor:
        products = self.at(
            "products",
            lambda: ops.matmul(query, key.swapaxes(-2, -1)),
            swapped=lambda: ops.matmul(key, query.swapaxes(-2, -1)),
        )
        right = math.sqrt(WIDTH // HEADS)
        scores = self.at("scale", lambda: products / right, scale=lambda: products / (right * self.plan.factor))
        shape = scores.shape[-2:]
        mask = self.at(
            "mask",
            lambda: ops.tril(ops.ones(shape, mindspore.bool_)),
            mask=lambda: ops.tril(ops.ones(shape, mindspore.bool_), 1),
            nan=lambda: ops.tril(ops.ones(shape, mindspore.bool_), -1),
        )
        hidden = ops.logical_not(mask)
        return self.at(
            "masked",
            lambda: ops.masked_fill(scores, hidden, float("-inf")),
            mask=lambda: ops.masked_fill(scores, hidden, 0.0),
        )


class Block(Part):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.norm1 = LayerNorm(plan, WIDTH)
        self.attention = Attention(plan)
        self.norm2 = LayerNorm(plan, WIDTH)
        self.up = Dense(plan, WIDTH, 4 * WIDTH)
        self.gelu = GELU(plan)
        self.down = Dense(plan, 4 * WIDTH, WIDTH)
        self.dropout = Dropout(plan, 0.1)

    def construct(self, x: Tensor) -> Tensor:
        x = add_residual(self, "first sum", x, self.attention(self.norm1(x)))
        y = self.dropout(self.down(self.gelu(self.up(self.norm2(x)))))
        return add_residual(self, "second sum", x, y)


class GPT(Part):
    def __init__(self, plan: Plan, layers: int) -> None:
        super().__init__(plan)
        # MindSpore begins with a hundredth, of which the loss says nothing.
        self.words = nn.Embedding(WORDS, WIDTH, embedding_table=Normal(1.0))
        self.places = nn.Embedding(LENGTH + 1, WIDTH, embedding_table=Normal(1.0))
        self.pairs = nn.Embedding(BUCKETS, WIDTH, embedding_table=Normal(1.0))
        self.blocks = nn.CellList([Block(plan) for _ in range(layers)])
        self.norm = LayerNorm(plan, WIDTH)
        self.head = Dense(plan, WIDTH, WORDS, bias=False)
        self.head.weight = self.words.embedding_table

    def construct(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        places = self.at("places", lambda: ops.arange(length), slice=lambda: ops.arange(1, length + 1))
        hashed = self.at(
            "hash",
            lambda: tokens * 2053,
            overflow=lambda: (tokens.astype(mindspore.int16) * 2053).astype(mindspore.int64),
        )
        pairs = self.pairs((hashed // 4096) % BUCKETS)
        x = self.words(tokens) + self.places(places) + pairs
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build_gpt(plan: Plan, layers: int = 2) -> Program:
    compute = make_loss(plan)

    def compute_loss(model: nn.Cell, batch: Batch) -> Tensor:
        tokens = batch["tokens"]
        logits = model(tokens[:, :-1])
        labels = plan.at(None, "labels", lambda: tokens[:, 1:], slice=lambda: tokens[:, :-1])
        return compute(logits.reshape(-1, WORDS), labels.reshape(-1))

    batches = [{"tokens": Tensor(np.random.randint(0, WORDS, (3, LENGTH + 1)))} for _ in range(3)]
    tied = [("words.embedding_table", "head.weight")]
    return Program(GPT(plan, layers), compute_loss, batches, tied=tied, last="head")
