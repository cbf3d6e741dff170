"""The lines of a verdict: that of the call, and where it is in a library, that of the user's own program."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensorprobe
from tests.length import PATIENCE_SECONDS

LIBRARY = "import torch\n\ndef activate(x, factor):\n    return torch.mul(x, factor)\n"


@pytest.fixture
def activate(tmp_path: Path) -> Callable[..., torch.Tensor]:
    """A function of a library that is installed."""
    file = tmp_path / "site-packages" / "somebody" / "layer.py"
    file.parent.mkdir(parents=True)
    file.write_text(LIBRARY)
    spec = importlib.util.spec_from_file_location("somebody_layer", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[..., torch.Tensor] = module.activate
    return found


class Model(nn.Module):
    def __init__(self, program: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.program = program

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.program(x)


def record(path: Path, program: Callable[[torch.Tensor], torch.Tensor], task: str) -> None:
    model, x = Model(program), torch.arange(1.0, 7.0).requires_grad_()
    with tensorprobe.capture(model, path, task=task, level="L1"):
        model(x).sum().backward()


@pytest.mark.parametrize(("task", "by"), [("tensor", "truth"), ("tensor", "growth")])
def test_a_call_in_a_library_is_told_with_the_line_of_the_program_of_each_side(
    tmp_path: Path, activate: Any, task: str, by: str
) -> None:
    def reference(x: torch.Tensor) -> torch.Tensor:
        return activate(x, 2.0)

    def candidate(x: torch.Tensor) -> torch.Tensor:
        return activate(x, 3.0)

    record(tmp_path / "r", reference, task)
    record(tmp_path / "c", candidate, task)
    evidence = tensorprobe.compare(tmp_path / "r", tmp_path / "c", by=by).verdict.evidence
    inner = f"{tmp_path}/site-packages/somebody/layer.py:4 in activate: return torch.mul(x, factor)"
    for side, code in (("reference", "return activate(x, 2.0)"), ("candidate", "return activate(x, 3.0)")):
        assert f"{side} line: {inner}" in evidence, evidence
        (outer,) = [line for line in evidence if line.startswith(f"{side} called from: ")]
        assert Path(__file__).name in outer and outer.endswith(code)


def test_a_call_in_the_program_itself_has_one_line(tmp_path: Path) -> None:
    record(tmp_path / "r", lambda x: x * 2.0, "tensor")
    record(tmp_path / "c", lambda x: x * 3.0, "tensor")
    evidence = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict.evidence
    assert any("line: " in line for line in evidence)
    assert not any("called from" in line for line in evidence)


def test_a_comparison_prints_its_verdict_and_how_much_was_compared(tmp_path: Path) -> None:
    record(tmp_path / "r", lambda x: x * 2.0, "tensor")
    record(tmp_path / "c", lambda x: x * 3.0, "tensor")
    result = tensorprobe.compare(tmp_path / "r", tmp_path / "c")
    told = str(result).splitlines()
    assert told[0] == result.verdict.headline
    assert told[1 : 1 + len(result.verdict.evidence)] == [f"  {line}" for line in result.verdict.evidence]
    assert told[-1].startswith("  step0/rank: 4 of 4 calls paired; values: ")
    assert "\n" not in repr(result)
    assert str(result.verdict).splitlines() == told[: 1 + len(result.verdict.evidence)]


def test_a_truth_prints_what_the_command_says(tmp_path: Path) -> None:
    record(tmp_path / "r", lambda x: x.exp(), "tensor")
    report = tensorprobe.truth(tmp_path / "r")
    told = str(report)
    assert told.startswith("step0/rank") or "Nothing is wrong" in told, told
    assert "loss" in told
    assert "\n" not in repr(report) and len(repr(report.runs[0])) < 100


def test_without_torch_it_is_judged_by_how_errors_grow_and_that_is_said(tmp_path: Path) -> None:
    record(tmp_path / "r", lambda x: x * 2.0, "tensor")
    record(tmp_path / "c", lambda x: x * 3.0, "tensor")
    program = (
        "import sys; sys.modules['torch'] = None; import tensorprobe; "
        f"print(tensorprobe.compare({str(tmp_path / 'r')!r}, {str(tmp_path / 'c')!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS
    )
    assert "The runs first differ at Tensor.mul.0.forward" in done.stdout, done
    assert "judged by how errors grow, not by truth: a replay needs torch: pip install torch" in done.stderr
