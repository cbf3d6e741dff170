"""What a step is for: its loss and the gradients of its parameters. What of it was not compared is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.compare.result import Verdict

Program = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Weights(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(8, 8, generator=generator) * 0.4)
        self.unused = nn.Parameter(torch.randn(8, generator=generator))
        self.program = program

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.program(self, x).square().mean()


def compare(tmp_path: Path, reference: Program, candidate: Program) -> Verdict:
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    for name, program in (("r", reference), ("c", candidate)):
        model = Weights(program)
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(x).backward()
    return tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict


def test_a_parameter_that_is_taken_as_a_view_has_its_gradient_compared(tmp_path: Path) -> None:
    verdict = compare(tmp_path, lambda model, x: x @ model.weight.T, lambda model, x: F.linear(x, model.weight))
    assert verdict.kind == "agree"
    assert "the loss and the gradient of 1 parameter have the same value" in verdict.headline
    assert not any("not compared" in line for line in verdict.evidence)


def test_one_thing_that_agrees_has_the_same_value(tmp_path: Path) -> None:
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    programs: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "r": lambda x: (x * x).mean(),
        "c": lambda x: x.square().mean(),
    }
    for name, program in programs.items():
        with tensorprobe.capture(None, tmp_path / name, level="L1", task="tensor"):
            program(x.clone().requires_grad_()).backward()
    headline = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict.headline
    assert "has the same value " in headline, headline


def test_one_gradient_that_differs_is_told_as_one(tmp_path: Path) -> None:
    verdict = compare(
        tmp_path,
        lambda model, x: x @ model.weight,
        lambda model, x: x @ (2 * model.weight - model.weight.detach()),
    )
    assert any("but 1 of 1 gradients of parameters is not (weight)" in line for line in verdict.evidence), verdict


def test_a_parameter_that_only_the_reference_has_is_said_to_be_not_compared(tmp_path: Path) -> None:
    verdict = compare(
        tmp_path,
        lambda model, x: x @ model.weight + 0 * model.unused,
        lambda model, x: x @ model.weight,
    )
    assert verdict.kind == "agree"
    assert any("not compared" in line and "unused" in line for line in verdict.evidence)


def test_a_step_too_large_for_the_memory_is_judged_by_how_errors_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tensorprobe.replay.memory.find_available_bytes", lambda device: 1)
    verdict = compare(tmp_path, lambda model, x: x @ model.weight.T, lambda model, x: F.linear(x, model.weight))
    assert verdict.kind == "agree"
    assert "executed again" not in verdict.headline
    assert "judged by how errors grow, not by truth: Replaying step0/rank would take" in caplog.text
    with pytest.raises(tensorprobe.UsageError, match=r"cannot be compared by truth: .* of memory"):
        tensorprobe.compare(tmp_path / "r", tmp_path / "c", by="truth")


def test_a_mask_of_what_is_kept_is_that_of_what_is_left_out(tmp_path: Path) -> None:
    """And what comes after it is not hidden by it."""
    places = torch.arange(8)

    def keep(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.where(places < 5, x @ model.weight, torch.zeros(())) * 2.0

    def leave_out(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (x @ model.weight).masked_fill(places >= 5, 0.0) * 2.1

    verdict = compare(tmp_path, keep, leave_out)
    assert "called with input.1=2.1 where the reference had 2.0" in verdict.headline, verdict


class Deep(nn.Module):
    """Many norms, all of whose weights are ones and biases zeros."""

    def __init__(self, factor: float, *, is_turned: bool, layers: int = 12) -> None:
        super().__init__()
        self.factor, self.is_turned = factor, is_turned
        self.norms = nn.ModuleList(nn.LayerNorm(6) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, norm in enumerate(self.norms):
            factor = self.factor if number == 7 else 0.7
            shifted = torch.tanh(norm(x)) * factor
            x = (x * 3 + shifted * 3) / 3 if self.is_turned else x + shifted
        return x.square().mean()


@pytest.mark.parametrize("factor", [0.7, 0.5], ids=["right", "wrong"])
def test_of_many_parameters_of_one_content_each_is_held_against_its_own(tmp_path: Path, factor: float) -> None:
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    for name, one in (("r", 0.7), ("c", factor)):
        model = Deep(one, is_turned=name == "c")
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(x).backward()
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    if factor == 0.7:
        assert verdict.kind == "agree"
        assert "24 parameters" in verdict.headline
    else:
        assert "0.5 where the reference had 0.7" in verdict.headline, verdict.headline
        assert not any("weights:" in line for line in verdict.evidence), "none has another name"


def test_a_gradient_that_is_nan_in_one_run_alone_is_a_difference(tmp_path: Path) -> None:
    def compute(norm: Callable[[torch.Tensor], torch.Tensor]) -> Program:
        return lambda model, x: x @ model.weight + norm(model.unused * 0)

    verdict = compare(tmp_path, compute(lambda zero: zero.norm()), compute(lambda zero: (zero * zero).sum().sqrt()))
    assert verdict.kind != "agree"
    assert any("but 1 of 2 gradients of parameters is not (unused)" in line for line in verdict.evidence), verdict


def test_a_gradient_that_is_nan_in_both_is_none(tmp_path: Path) -> None:
    verdict = compare(
        tmp_path,
        lambda model, x: x @ model.weight + (model.unused * 0).square().sum().sqrt(),
        lambda model, x: F.linear(x, model.weight.T) + ((model.unused * 0) ** 2).sum().sqrt(),
    )
    assert verdict.kind == "agree", verdict
