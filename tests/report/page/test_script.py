"""The script that repeats the call of the verdict, in the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F

import tensorprobe
from tensorprobe.report.page.comparison import build_comparison_page
from tests.cli.command import run_here

NAME = "Functional.gelu.0.forward"


class Model(torch.nn.Module):
    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-2, 2, 64).reshape(8, 8))
        self.approximate = approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x @ self.weight, approximate=self.approximate).sum()


def record(folder: Path, approximate: str, task: Literal["tensor", "replay", "statistics"]) -> Path:
    model = Model(approximate)
    with tensorprobe.capture(model, folder, level="L1", task=task):
        model(torch.linspace(-1, 3, 32).reshape(4, 8)).backward()
    return folder


def build_script(folder: Path, task: Any) -> dict[str, Any]:
    good, bad = record(folder / "good", "none", task), record(folder / "bad", "tanh", task)
    script: dict[str, Any] = build_comparison_page(tensorprobe.compare(good, bad))["verdict"]["script"]
    return script


@pytest.mark.parametrize("task", ["tensor", "replay"])
def test_it_is_the_one_that_repro_writes(task: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = build_script(tmp_path, task)
    assert (script["side"], script["call"]) == ("candidate", NAME)
    assert "approximate='tanh'" in script["text"]
    assert run_here(capfd, "repro", tmp_path / "bad", NAME, "-o", tmp_path / "bug").returncode == 0
    assert (tmp_path / "bug" / "repro.py").read_text() == script["text"]


def test_where_it_cannot_be_made_the_page_says_why(tmp_path: Path) -> None:
    script = build_script(tmp_path, "statistics")
    assert "text" not in script
    assert 'recorded with task "statistics", which keeps no tensors to start from' in script["reason"]
