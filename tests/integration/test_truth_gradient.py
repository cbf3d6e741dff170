"""Two small programs with the same loss, of which one lets gradients go another way: what is said of it?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.compare.result import Comparison

Program = Callable[["Net", torch.Tensor], torch.Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.second(torch.tanh(self.first(x)))
        return hidden


def compare(tmp_path: Path, reference: Program, candidate: Program, *, frozen: str | None = None) -> Comparison:
    """`frozen`: a parameter that the reference does not train."""
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    for name, program in (("r", reference), ("c", candidate)):
        model = Net()
        if name == "r" and frozen is not None:
            model.get_parameter(frozen).requires_grad_(False)
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            program(model, x).backward()
    return tensorprobe.compare(tmp_path / "r", tmp_path / "c")


def named(result: Comparison) -> set[str]:
    call = result.verdict.call
    assert call is not None, result.verdict.headline
    return {one.name.split(".")[1] for one in (*call.reference, *call.candidate)}


def use_own_guess(model: Net, x: torch.Tensor, *, is_followed: bool) -> torch.Tensor:
    """The network looks at what it has made of the same before."""
    with torch.set_grad_enabled(is_followed):
        guess = 0.5 * model(x) - x
    return model(x + guess).square().mean()


def test_where_a_network_runs_without_gradients_in_one_run_only_its_caller_is_named(tmp_path: Path) -> None:
    result = compare(
        tmp_path,
        lambda model, x: use_own_guess(model, x, is_followed=False),
        lambda model, x: use_own_guess(model, x, is_followed=True),
    )
    assert named(result) == {"mul"}, result.verdict.headline
    assert "the reference stops it there" in result.verdict.headline


def test_a_parameter_that_one_run_does_not_train_is_said_to_be_frozen(tmp_path: Path) -> None:
    def compute(model: Net, x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    result = compare(tmp_path, compute, compute, frozen="first.bias")
    assert "first.bias gets a gradient in the candidate, but is frozen in the reference" in result.verdict.headline
    assert named(result) == {"linear"}


def test_a_parameter_whose_numbers_are_taken_without_a_gradient_is_named_with_the_call_that_takes_them(
    tmp_path: Path,
) -> None:
    result = compare(
        tmp_path,
        lambda model, x: (model(x) * model.scale).square().mean(),
        lambda model, x: (model(x) * model.scale.data).square().mean(),
    )
    assert "scale gets a gradient in the reference, but the candidate uses its values" in result.verdict.headline
    assert named(result) == {"mul"}


def weigh(model: Net, x: torch.Tensor, *, stops: bool) -> torch.Tensor:
    """Against a frozen copy with the same parameters: what both give has the same numbers."""
    copy = Net()
    with torch.no_grad():
        good, bad = copy(x).sum(1), copy(2 * x).sum(1)
    first, second = model(x).sum(1) - good, model(2 * x).sum(1) - bad
    return F.softplus(first - (second.detach() if stops else second) + x.sum(1)).mean()


def test_a_stop_is_named_although_a_frozen_copy_gives_the_same_numbers(tmp_path: Path) -> None:
    result = compare(
        tmp_path, lambda model, x: weigh(model, x, stops=False), lambda model, x: weigh(model, x, stops=True)
    )
    assert "detach" in named(result), result.verdict.headline


def test_a_copy_that_gets_no_gradient_is_no_parameter_of_the_other_run(tmp_path: Path) -> None:
    result = compare(
        tmp_path,
        lambda model, x: weigh(model, x, stops=False),
        lambda model, x: weigh(model, x, stops=False) + 0 * model.scale.sum(),
    )
    assert result.verdict.kind == "agree", result.verdict.headline
