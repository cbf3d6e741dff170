"""A recurrent network written out, over packed lengths, pooled by attention, with a loss of its own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fault.place import Plan
from fault.program import Batch, Program
from fault.pytorch.gradient import scale_by_hook
from fault.pytorch.model.layer import Dropout, LayerNorm, Linear, Part, add_residual, pass_on

FEATURES, WIDTH, LENGTH = 6, 18, 8


class Cell(Part):
    def __init__(self, plan: Plan, inputs: int) -> None:
        super().__init__(plan)
        self.gates = Linear(plan, inputs + WIDTH, 2 * WIDTH)
        self.new = Linear(plan, inputs + WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        gates = torch.sigmoid(self.gates(torch.cat([x, hidden], dim=1)))
        reset, update = gates[:, :WIDTH], gates[:, WIDTH:]
        kept = self.at("reset", lambda: reset * hidden, operand=lambda: update * hidden, residual=lambda: hidden)
        joined = self.at("join", lambda: torch.cat([x, kept], 1), swapped=lambda: torch.cat([kept, x], 1))
        raw = self.new(joined)
        new = self.at(
            "new",
            lambda: torch.tanh(raw),
            activation=lambda: F.hardtanh(raw),
            scale=lambda: torch.tanh(raw * self.plan.factor),
        )
        result = self.at(
            "mix",
            lambda: torch.lerp(new, hidden, update),
            swapped=lambda: torch.lerp(hidden, new, update),
            precision=lambda: torch.lerp(new.bfloat16(), hidden.bfloat16(), update.bfloat16()).to(new.dtype),
            gradient_hook=lambda: scale_by_hook(torch.lerp(new, hidden, update), self.plan.factor),
        )
        return pass_on(self.plan, self, "hidden", result)


class Pooling(Part):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.score = Linear(plan, WIDTH, 1)

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        scores = self.score(x).squeeze(-1)
        present = self.at(
            "present",
            lambda: torch.arange(LENGTH) < counts[:, None],
            slice=lambda: torch.arange(1, LENGTH + 1) < counts[:, None],
            mask=lambda: torch.arange(LENGTH) <= counts[:, None],
        )
        masked = self.at(
            "masked",
            lambda: torch.where(present, scores, float("-inf")),
            nan=lambda: torch.where(present, float("-inf"), scores),
            mask=lambda: torch.where(present, scores, 0.0),
        )
        weights = self.at(
            "softmax", lambda: torch.softmax(masked, 1), dimension=lambda: torch.softmax(masked.clamp(min=-50), 0)
        )
        return self.at(
            "sum",
            lambda: torch.einsum("bl,blw->bw", weights, x),
            reduction=lambda: torch.einsum("bl,blw->bw", weights, x) / LENGTH,
            precision=lambda: torch.einsum("bl,blw->bw", weights.bfloat16(), x.bfloat16()).to(x.dtype),
        )


class Reader(Part):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.cells = nn.ModuleList([Cell(plan, FEATURES), Cell(plan, WIDTH)])
        self.norm = LayerNorm(plan, WIDTH)
        self.dropout = Dropout(plan, 0.2)
        self.pooling = Pooling(plan)
        self.extra = Linear(plan, WIDTH, WIDTH)
        self.out = Linear(plan, WIDTH, 1)

    def forward(self, series: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        x = series
        for layer, cell in enumerate(self.cells):
            hidden = x.new_full((len(x), WIDTH), 0.1 * (layer + 1))
            results = []
            for step in range(LENGTH):
                hidden = cell(x[:, step], hidden)
                results.append(hidden)
            x = torch.stack(results, dim=1)
        x = self.dropout(self.norm(x))
        pooled = self.pooling(x, counts)
        pooled = add_residual(self, "sum", pooled, torch.tanh(self.extra(pooled)))
        return self.out(pooled).squeeze(-1)  # type: ignore[no-any-return]


def build_gru(plan: Plan) -> Program:
    def compute_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        result = model(batch["series"], batch["counts"])
        errors = plan.at(
            None,
            "errors",
            lambda: result - batch["wanted"],
            operand=lambda: result - batch["series"][:, 0, 0],
        )
        squares = errors.square()
        return plan.at(None, "mean", lambda: squares.mean(), reduction=lambda: squares.sum())

    def make_batch() -> Batch:
        counts = torch.tensor([LENGTH - 1, 3, LENGTH - 2])
        return {"series": torch.randn(3, LENGTH, FEATURES), "counts": counts, "wanted": torch.randn(3)}

    return Program(Reader(plan), compute_loss, [make_batch() for _ in range(3)], last="out")
