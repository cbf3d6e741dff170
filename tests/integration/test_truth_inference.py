"""Programs without a backward: what nobody takes is their result."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tensorprobe
from tensorprobe.compare.result import Verdict
from tensorprobe.store.reader import open_dump

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


PROGRAM = """
import sys
import torch
import tensorprobe

with torch.inference_mode():
    with tensorprobe.capture(None, sys.argv[1], level="L1", task="tensor"):
        torch.ones(3).relu_().exp()
"""


def infer_without_versions(path: Path, program: Callable[[Heads, Tensor], object], *, task: str = "tensor") -> Path:
    """In inference mode torch does not count how often a tensor is written to."""
    model, rows = Heads(1.5), torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode(), tensorprobe.capture(model, str(path), level="L1", task=task):
        program(model, rows)
    return path


def call_layers(model: Heads, rows: Tensor) -> Tensor:
    return torch.sigmoid(model.second(F.relu(model.body(rows)) * 2))


def write_out(model: Heads, rows: Tensor, factor: float = 2) -> Tensor:
    """Into memory that is there already."""
    hidden = rows @ model.body.weight.T + model.body.bias
    hidden.relu_()
    hidden.mul_(factor)
    return 1 / (1 + torch.exp(-F.linear(hidden, model.second.weight, model.second.bias)))


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


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_in_inference_mode_a_program_that_is_written_out_is_the_same(task: str, tmp_path: Path) -> None:
    paths = [infer_without_versions(tmp_path / one.__name__, one, task=task) for one in (call_layers, write_out)]
    assert compare(*paths).kind == "agree"


def test_in_inference_mode_a_mistake_is_named(tmp_path: Path) -> None:
    reference = infer_without_versions(tmp_path / "right", write_out)
    candidate = infer_without_versions(tmp_path / "wrong", lambda model, rows: write_out(model, rows, 2.1))
    verdict = compare(reference, candidate)
    assert "called with input.1=2.1 where the reference had 2" in verdict.headline, verdict
    assert verdict.call is not None and "mul_" in verdict.call.name


def test_a_program_that_is_in_inference_mode_from_the_start_is_recorded(tmp_path: Path) -> None:
    """Nothing of tensorprobe is loaded before."""
    script = tmp_path / "infer.py"
    script.write_text(PROGRAM)
    subprocess.run([sys.executable, str(script), str(tmp_path / "dump")], check=True, capture_output=True)
    (rank,) = open_dump(tmp_path / "dump").ranks()
    assert [record.name for record in rank.records()] == [
        *("Torch.ones.0.forward", "Tensor.relu_.0.forward", "Tensor.exp.0.forward")
    ]
