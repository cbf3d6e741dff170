"""The backward of an autograd Function is the program's: a replay follows it where it is no derivative."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.compare.result import Verdict
from tensorprobe.pytorch import PrecisionDebugger

Change = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Steps(torch.autograd.Function):  # type: ignore[misc]
    """Rounds to whole steps; the gradient passes straight through where nothing is cut off."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, step: torch.Tensor, is_right: bool = True) -> torch.Tensor:
        ctx.save_for_backward(x, step)
        ctx.is_right = is_right
        return torch.clamp(torch.round(x / step), -4, 3) * step

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, step = ctx.saved_tensors
        ratio = x / step
        is_inside = (ratio >= -4) & (ratio <= 3)
        slope = torch.where(is_inside, ratio.round() - ratio, ratio.clamp(-4, 3))
        passed = gradient * is_inside if ctx.is_right else gradient
        return passed, (gradient * slope).sum().reshape(step.shape), None


class Reversed(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * -0.1


class Tanh(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (y,) = ctx.saved_tensors
        return gradient * (1 - y * y)


def round_by_detach(x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    ratio = torch.clamp(x / step, -4, 3)
    return (ratio + (torch.round(ratio) - ratio).detach()) * step


def reverse_by_detach(x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    return -0.1 * x + (x + 0.1 * x).detach()


class Model(nn.Module):
    def __init__(self, change: Change) -> None:
        super().__init__()
        self.first, self.last, self.change = nn.Linear(6, 8), nn.Linear(8, 3), change
        self.step = nn.Parameter(torch.full((1,), 0.15))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.change(self.first(x), self.step)).square().mean() + 0.01 * self.step.sum()


def record(folder: Path, change: Change, dtype: torch.dtype) -> Path:
    torch.manual_seed(0)
    model, x = Model(change).to(dtype), torch.randn(5, 6).to(dtype)
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(folder), level="L1", task="tensor")
    debugger.start(model)
    model(x).backward()
    debugger.stop()
    debugger.step()
    PrecisionDebugger.reset()
    return folder


def compare(tmp_path: Path, reference: Change, candidate: Change, dtype: torch.dtype = torch.float32) -> Verdict:
    paths = [record(tmp_path / name, one, dtype) for name, one in (("r", reference), ("c", candidate))]
    return tensorprobe.compare(*paths).verdict


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("function", "other"),
    [(Steps.apply, round_by_detach), (lambda x, step: Reversed.apply(x), reverse_by_detach)],
    ids=["straight through", "reversed"],
)
def test_a_backward_of_its_own_agrees_with_one_that_is_written_by_detach(
    function: Change, other: Change, dtype: torch.dtype, tmp_path: Path
) -> None:
    verdict = compare(tmp_path, function, other, dtype)
    assert verdict.kind == "agree", verdict.headline
    assert any(
        "is not the derivative of its forward: the recorded gradients were used" in one for one in verdict.evidence
    )


class Through(torch.autograd.Function):  # type: ignore[misc]
    """Hands on the rounded numbers, and all of their gradient to what they were made of, which it does not use."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rounded: torch.Tensor, share: float) -> torch.Tensor:
        ctx.share = share
        return rounded.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.share * gradient, None, None


class HandedOn(torch.autograd.Function):  # type: ignore[misc]
    """What it is given, with its gradient times a factor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.factor * gradient, None


@pytest.mark.parametrize("factor", [1.0, 0.97, 1.02])
def test_a_factor_that_is_not_much_more_than_rounding_is_found_in_bfloat16(factor: float, tmp_path: Path) -> None:
    verdict = compare(tmp_path, lambda x, _: x, lambda x, _: HandedOn.apply(x, factor), torch.bfloat16)
    assert (verdict.kind == "agree") is (factor == 1.0), verdict.headline


def test_a_hook_that_changes_a_gradient_by_little_is_found_in_bfloat16(tmp_path: Path) -> None:
    def hook(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        y = x.view_as(x)
        y.register_hook(lambda gradient: 1.02 * gradient)
        return y

    verdict = compare(tmp_path, lambda x, _: x.view_as(x), hook, torch.bfloat16)
    assert "a hook, or a write" in verdict.headline


@pytest.mark.parametrize("share", [1.0, 1.1])
def test_an_argument_that_no_call_inside_uses_gets_the_gradient_that_the_function_gave_it(
    share: float, tmp_path: Path
) -> None:
    verdict = compare(
        tmp_path,
        lambda x, step: x + (x.round() - x).detach(),
        lambda x, step: Through.apply(x, x.detach().round(), share),
    )
    assert (verdict.kind == "agree") is (share == 1.0), verdict.headline


def test_a_backward_that_passes_what_it_should_cut_off_is_found(tmp_path: Path) -> None:
    verdict = compare(tmp_path, Steps.apply, lambda x, step: Steps.apply(x * 1.0, step, False))
    assert verdict.kind != "agree"
    assert "Autograd.Steps.0.backward" in verdict.headline, verdict.headline


def test_a_wrong_backward_of_the_reference_is_named_against_calls_written_out(tmp_path: Path) -> None:
    verdict = compare(
        tmp_path, lambda x, step: Steps.apply(x * 3, step, False), lambda x, step: round_by_detach(x * 3, step)
    )
    assert verdict.headline.startswith("The runs first differ at Autograd.Steps.0.backward"), verdict.headline
    assert "it receives the same gradient, but returns a different one" in verdict.headline


def test_a_backward_that_is_the_derivative_is_executed_again(tmp_path: Path) -> None:
    verdict = compare(tmp_path, lambda x, step: Tanh.apply(x), lambda x, step: F.tanh(x))
    assert verdict.kind == "agree", verdict.headline
    assert not any("is not the derivative" in one for one in verdict.evidence)


def test_a_backward_is_the_derivative_also_of_a_gradient_that_came_off(tmp_path: Path) -> None:
    """Behind it a part of the program computes in bfloat16; it does not."""

    def go_coarse(x: torch.Tensor) -> torch.Tensor:
        return (x.bfloat16() * 1.3).softmax(-1).square().float()

    verdict = compare(tmp_path, lambda x, _: go_coarse(F.tanh(x)), lambda x, _: go_coarse(Tanh.apply(x)))
    assert verdict.kind == "agree", verdict.headline
    assert not any("is not the derivative" in one for one in verdict.evidence), verdict.evidence


class Scaled(torch.autograd.Function):  # type: ignore[misc]
    """Half of the gradient goes to the scale."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor, share: float) -> torch.Tensor:
        ctx.save_for_backward(x, scale)
        ctx.share = share
        return x * scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, scale = ctx.saved_tensors
        return gradient * scale, ctx.share * (gradient * x).sum().reshape(scale.shape), None


class Weighed(nn.Module):
    def __init__(self, change: Change) -> None:
        super().__init__()
        self.scale, self.change = nn.Parameter(torch.tensor([1.3])), change

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (self.change(x, self.scale) * weight).sum()


def compare_weighed(tmp_path: Path, changes: tuple[Change, Change], x: torch.Tensor, weight: torch.Tensor) -> Verdict:
    for name, change in zip("rc", changes, strict=True):
        model = Weighed(change)
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(x, weight).backward()
    return tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict


@pytest.mark.parametrize("share", [0.5, 0.51])
def test_a_gradient_that_nearly_cancels_is_as_coarse_as_what_it_is_the_sum_of(share: float, tmp_path: Path) -> None:
    """The sum is far smaller than its terms: float32 knows few digits of it."""
    changes: tuple[Change, Change] = (
        lambda x, scale: Scaled.apply(x, scale, share),
        lambda x, scale: x * (0.5 * scale + (0.5 * scale).detach()),
    )
    torch.manual_seed(0)
    x, other = torch.randn(2, 4096)
    weight = other - (other @ x) / (x @ x) * x + 1e-5 * x
    verdict = compare_weighed(tmp_path, changes, x, weight)
    assert (verdict.kind == "agree") is (share == 0.5), verdict.headline


@pytest.mark.parametrize("size", [1.0, 1e-4])
@pytest.mark.parametrize("share", [1.0, 1.01, 1e-7, 0.0])
def test_a_gradient_that_is_too_small_does_not_excuse_itself(share: float, size: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, weight = size * torch.rand(64), torch.rand(64)
    changes: tuple[Change, Change] = (lambda x, scale: x * scale, lambda x, scale: Scaled.apply(x, scale, share))
    verdict = compare_weighed(tmp_path, changes, x, weight)
    assert (verdict.kind == "agree") is (share == 1.0), verdict.headline


class Shifted(nn.Module):
    """A shift of all logits, whose gradient is nothing but rounding, and a loss of its own for what makes it."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.layer, self.shift, self.share = nn.Linear(6, 8), nn.Parameter(torch.randn(8)), share

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shift = (2 * self.shift).mean().reshape(1)
        labels = torch.arange(len(x))
        logits = Added.apply(self.layer(x), shift)
        kept = self.share * self.shift + ((1 - self.share) * self.shift).detach()
        return F.cross_entropy(logits, labels) + 0.1 * kept.square().sum()


class Added(torch.autograd.Function):  # type: ignore[misc]
    """The shift gets half of its gradient, on purpose."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return x + shift

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, 0.5 * gradient.sum().reshape(1)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_rounding_of_one_share_does_not_excuse_another(share: float, tmp_path: Path) -> None:
    for name, chosen in (("r", 1.0), ("c", share)):
        torch.manual_seed(0)
        model, x = Shifted(chosen), torch.randn(5, 6)
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(x).backward()
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    assert (verdict.kind == "agree") is (share == 1.0), verdict.headline


@pytest.mark.parametrize("rate", [0.1, 0.2])
def test_updates_of_other_parameters_are_compared(rate: float, tmp_path: Path) -> None:
    for name, chosen in (("r", 0.1), ("c", rate)):
        torch.manual_seed(0)
        model, x = Shifted(1.0), torch.randn(5, 6)
        optimizer = torch.optim.SGD(model.parameters(), lr=chosen)
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(x).backward()
            optimizer.step()
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    assert (verdict.kind == "agree") is (rate == 0.1), verdict.headline
