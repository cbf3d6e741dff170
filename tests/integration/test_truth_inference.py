"""Programs without a backward: what nobody takes is their result."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import tensorprobe
from tensorprobe.compare.result import Verdict

ROWS = 6


class Heads(nn.Module):
    """Two results for each row."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(4, 2)
        self.factor = factor

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.body(x))
        return self.first(hidden).softmax(-1), torch.sigmoid(self.second(hidden) * self.factor)


def infer(path: Path, parts: int, *, factor: float = 1.5, is_turned: bool = False) -> Path:
    model, rows = Heads(factor), torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), tensorprobe.capture(model, str(path), level="L1", task="tensor"):
        for part in (rows.flip(0) if is_turned else rows).chunk(parts):
            model(part)
    return path


def compare(reference: Path, candidate: Path) -> Verdict:
    return tensorprobe.compare(reference, candidate, processes=1).verdict


def test_results_of_a_batch_that_is_computed_in_parts_are_the_same(tmp_path: Path) -> None:
    whole, parts = infer(tmp_path / "whole", 1), infer(tmp_path / "parts", 3)
    assert compare(whole, parts).kind == "agree"
    assert compare(parts, whole).kind == "agree"


def test_a_mistake_in_one_result_of_parts_is_a_difference(tmp_path: Path) -> None:
    verdict = compare(infer(tmp_path / "whole", 1), infer(tmp_path / "parts", 3, factor=1.6))
    assert verdict.call is not None and "mul" in verdict.call.candidate[-1].name, verdict


def test_rows_in_another_order_are_other_results(tmp_path: Path) -> None:
    verdict = compare(infer(tmp_path / "rows", 1), infer(tmp_path / "turned", 1, is_turned=True))
    assert verdict.kind != "agree", verdict
