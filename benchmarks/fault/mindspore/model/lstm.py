"""A recurrent tagger: MindSpore's own LSTM in one cell, then one written out in mint and called at every step."""

from __future__ import annotations

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.common.initializer import Normal

from fault.mindspore.gradient import scale_by_hook
from fault.mindspore.model.layer import LOW, Dropout, Linear, Part, make_loss, pass_on, shift
from fault.place import Plan
from fault.program import Batch, Program

WORDS, WIDTH, LENGTH, TAGS = 40, 16, 7, 5


class Cell(Part):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.input = Linear(plan, WIDTH, 4 * WIDTH)
        self.hidden = Linear(plan, WIDTH, 4 * WIDTH)

    def construct(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        hidden, cell = state
        joint = mint.add(self.input(x), self.hidden(hidden))
        parts = self.at(
            "gates",
            lambda: mint.chunk(joint, 4, 1),
            swapped=lambda: mint.chunk(ops.flip(joint, (1,)), 4, 1),
        )
        keep = self.at(
            "keep",
            lambda: mint.sigmoid(parts[0]),
            scale=lambda: mint.sigmoid(parts[0] * self.plan.factor),
            activation=lambda: mint.tanh(parts[0]),
        )
        let, new = mint.sigmoid(parts[1]), mint.tanh(parts[2])
        kept = self.at(
            "kept",
            lambda: mint.mul(keep, cell),
            operand=lambda: mint.mul(keep, hidden),
            slice=lambda: mint.mul(keep, shift(cell, 0)),
        )
        fresh = mint.mul(let, new)
        cell = self.at(
            "cell",
            lambda: mint.add(kept, fresh),
            residual=lambda: fresh,
            precision=lambda: mint.add(kept.astype(LOW), fresh.astype(LOW)).astype(kept.dtype),
            gradient_hook=lambda: scale_by_hook(mint.add(kept, fresh), self.plan.factor),
        )
        cell = pass_on(self.plan, self, "cell state", cell)
        return mint.mul(mint.sigmoid(parts[3]), mint.tanh(cell)), cell


class Tagger(Part):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.words = nn.Embedding(WORDS, WIDTH, embedding_table=Normal(1.0))
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.dropout = Dropout(plan, 0.2)
        self.cell = Cell(plan)
        self.hidden, self.state = (Parameter(Tensor(np.zeros(WIDTH, np.float32)), name=name) for name in ("h", "c"))
        self.fc = Linear(plan, WIDTH, TAGS)

    def construct(self, tokens: Tensor, counts: Tensor) -> Tensor:
        hashed = self.at(
            "hash",
            lambda: tokens * 977 + 13,
            overflow=lambda: (tokens.astype(mindspore.int16) * 977 + 13).astype(mindspore.int64),
        )
        embedded = self.words(hashed % WORDS)
        read = self.at(
            "lstm",
            lambda: self.lstm(embedded),
            slice=lambda: self.lstm(shift(embedded, 1)),
            scale=lambda: self.lstm(embedded * self.plan.factor),
        )[0]
        read = self.dropout(read)
        shape = (len(tokens), WIDTH)
        state = ops.broadcast_to(self.hidden, shape), ops.broadcast_to(self.state, shape)
        results = []
        for step in range(LENGTH):
            state = self.cell(read[:, step], state)
            results.append(state[0])
        stacked = ops.stack(results, 1)
        present = (ops.arange(LENGTH) < counts[:, None]).astype(stacked.dtype)[..., None]
        masked = self.at("present", lambda: stacked * present, mask=lambda: stacked * (1 - present))
        total = self.at("total", lambda: mint.sum(masked, 1), reduction=lambda: mint.mean(masked, 1))
        mean = self.at(
            "mean",
            lambda: total / counts[:, None],
            scale=lambda: total / LENGTH,
            nan=lambda: total / (counts[:, None] - counts.max()),
            overflow=lambda: total / (counts[:, None] * 100).astype(mindspore.int8),
        )
        return self.fc(mean)


def build_lstm(plan: Plan) -> Program:
    compute = make_loss(plan)

    def compute_loss(model: nn.Cell, batch: Batch) -> Tensor:
        return compute(model(batch["tokens"], batch["counts"]), batch["labels"])

    def make_batch() -> Batch:
        return {
            "tokens": Tensor(np.random.randint(0, 1000, (4, LENGTH))),
            "counts": Tensor(np.array([3, LENGTH, 5, LENGTH - 1])),
            "labels": Tensor(np.random.randint(0, TAGS, (4,))),
        }

    return Program(Tagger(plan), compute_loss, [make_batch() for _ in range(3)], last="fc")
