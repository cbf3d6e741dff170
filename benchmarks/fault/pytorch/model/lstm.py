"""A recurrent tagger: torch's own LSTM in one call, then a cell that is written out and called at every step."""

from __future__ import annotations

import torch
from torch import nn

from fault.place import Plan
from fault.program import Batch, Program
from fault.pytorch.gradient import scale_by_hook
from fault.pytorch.model.layer import Dropout, Linear, Part, make_loss, pass_on

WORDS, WIDTH, LENGTH, TAGS = 40, 16, 7, 5


class Cell(Part):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.input = Linear(plan, WIDTH, 4 * WIDTH)
        self.hidden = Linear(plan, WIDTH, 4 * WIDTH)

    def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, cell = state
        joint = self.input(x) + self.hidden(hidden)
        parts = self.at(
            "gates",
            lambda: joint.chunk(4, dim=1),
            swapped=lambda: joint.roll(WIDTH, dims=1).chunk(4, dim=1),
        )
        keep = self.at(
            "keep",
            lambda: torch.sigmoid(parts[0]),
            scale=lambda: torch.sigmoid(parts[0] * self.plan.factor),
            activation=lambda: torch.tanh(parts[0]),
        )
        let, new = torch.sigmoid(parts[1]), torch.tanh(parts[2])
        kept = self.at("kept", lambda: keep * cell, operand=lambda: keep * hidden, slice=lambda: keep * cell.roll(1, 0))
        cell = self.at(
            "cell",
            lambda: kept + let * new,
            residual=lambda: let * new,
            precision=lambda: (kept.bfloat16() + (let * new).bfloat16()).to(kept.dtype),
            gradient_hook=lambda: scale_by_hook(kept + let * new, self.plan.factor),
        )
        cell = pass_on(self.plan, self, "cell state", cell)
        return torch.sigmoid(parts[3]) * torch.tanh(cell), cell


class Tagger(Part):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.dropout = Dropout(plan, 0.2)
        self.cell = Cell(plan)
        self.hidden, self.state = (nn.Parameter(torch.zeros(WIDTH)) for _ in range(2))
        self.fc = Linear(plan, WIDTH, TAGS)

    def forward(self, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        hashed = self.at("hash", lambda: tokens * 977 + 13, overflow=lambda: (tokens.byte() * 977 + 13).long())
        embedded = self.words(hashed % WORDS)
        read = self.at(
            "lstm",
            lambda: self.lstm(embedded),
            slice=lambda: self.lstm(embedded.roll(1, dims=1)),
            scale=lambda: self.lstm(embedded * self.plan.factor),
        )[0]
        read = self.dropout(read)
        state = self.hidden.expand(len(tokens), -1), self.state.expand(len(tokens), -1)
        results = []
        for step in range(LENGTH):
            state = self.cell(read[:, step], state)
            results.append(state[0])
        stacked = torch.stack(results, dim=1)
        present = torch.arange(LENGTH) < counts[:, None]
        masked = self.at(
            "present",
            lambda: stacked * present[..., None],
            mask=lambda: stacked * ~present[..., None],
        )
        total = self.at("total", lambda: masked.sum(1), reduction=lambda: masked.mean(1))
        mean = self.at(
            "mean",
            lambda: total / counts[:, None],
            scale=lambda: total / LENGTH,
            nan=lambda: total / (counts[:, None] - counts.max()),
            overflow=lambda: total / (counts[:, None] * 100).to(torch.int8),
        )
        return self.fc(mean)


def build_lstm(plan: Plan) -> Program:
    compute = make_loss(plan)

    def compute_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return compute(model(batch["tokens"], batch["counts"]), batch["labels"])

    def make_batch() -> Batch:
        return {
            "tokens": torch.randint(0, 1000, (4, LENGTH)),
            "counts": torch.tensor([3, LENGTH, 5, LENGTH - 1]),
            "labels": torch.randint(0, TAGS, (4,)),
        }

    return Program(Tagger(plan), compute_loss, [make_batch() for _ in range(3)], last="fc")
