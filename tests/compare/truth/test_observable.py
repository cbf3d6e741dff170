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
    assert any("but 1 of 1 parameter gradients differs (weight)" in line for line in verdict.evidence), verdict


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


def test_gradients_that_cannot_be_computed_again_are_not_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process that has parted from one that used a GPU: torch refuses to follow gradients there."""

    def lose_half(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x @ (0.5 * model.weight + 0.5 * model.weight.detach())

    assert compare(tmp_path, lambda model, x: x @ model.weight, lose_half).kind != "agree"

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing.")

    monkeypatch.setattr("torch.autograd.backward", refuse)
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    assert "executed again in float64" not in verdict.headline
    assert any("not judged by truth: backward_pass.0 of the reference" in line for line in verdict.evidence), verdict
    with pytest.raises(tensorprobe.UsageError, match=r"backward_pass.0 of the reference could not be run again"):
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
    assert any("but 1 of 2 parameter gradients differs (unused)" in line for line in verdict.evidence), verdict


def test_a_gradient_that_is_nan_in_both_is_none(tmp_path: Path) -> None:
    verdict = compare(
        tmp_path,
        lambda model, x: x @ model.weight + (model.unused * 0).square().sum().sqrt(),
        lambda model, x: F.linear(x, model.weight.T) + ((model.unused * 0) ** 2).sum().sqrt(),
    )
    assert verdict.kind == "agree", verdict


class Parts(nn.Module):
    """Two maps in three matrices and biases, or in two halves of all three, as ranks hold them."""

    def __init__(self, *, is_halved: bool, fault: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(8, 6, generator=generator) for _ in range(3)]
        biases = [torch.randn(8, generator=generator) for _ in range(3)]
        cut = slice(0, 4), slice(4, 8)
        self.fault = fault
        halves = [[torch.cat([one[part] for one in kind]) for part in cut] for kind in (weights, biases)]
        self.weights, self.biases = map(nn.ParameterList, halves if is_halved else (weights, biases))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.weights) == 3:
            first, second, third = (x @ one.T + bias for one, bias in zip(self.weights, self.biases, strict=True))
            return first * second.tanh() + third
        parts = (F.linear(x, one, bias).chunk(3, -1) for one, bias in zip(self.weights, self.biases, strict=True))
        return torch.cat([one * two.tanh() + three * self.fault for one, two, three in parts], -1)


@pytest.mark.parametrize("fault", [1.0, 1.01])
def test_weights_that_each_run_has_cut_up_in_its_own_way_are_compared(fault: float, tmp_path: Path) -> None:
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    for name, model in (("r", Parts(is_halved=False)), ("c", Parts(is_halved=True, fault=fault))):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor") as run:
            for _ in range(2):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                run.step()
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    assert (verdict.kind == "agree") == (fault == 1.0), verdict
    told = "weights: biases.0, biases.1 and biases.2 of the reference are the same rows as biases.0 and biases.1 of the"
    assert any(told in line for line in verdict.evidence), verdict
    assert not any("not compared" in line for line in verdict.evidence), verdict


def test_a_count_that_is_added_up_in_another_way_does_not_hide_what_differs(tmp_path: Path) -> None:
    masks = [torch.arange(8) < 5, torch.arange(8) < 3]

    def add_up(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (x @ model.weight).relu() / sum(mask.sum() for mask in masks)

    def add_stacked(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x @ model.weight) / torch.stack([mask.sum() for mask in masks]).sum()

    verdict = compare(tmp_path, add_up, add_stacked)
    assert verdict.call is not None and verdict.call.reference[0].name == "Tensor.relu.0.forward", verdict


class Rows(nn.Module):
    """18 rows of weights, in pieces."""

    def __init__(self, *counts: int) -> None:
        super().__init__()
        whole = torch.randn(18, 6, generator=torch.Generator().manual_seed(0))
        self.weights = nn.ParameterList(whole.split(counts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([F.linear(x, one) for one in self.weights], -1).tanh()


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_weights_of_which_some_lie_in_one_of_the_other_run_and_some_in_two_are_compared(
    scale: float, tmp_path: Path
) -> None:
    """`scale`: of the gradient of one row, which lies in the middle."""
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    for name, model in (("r", Rows(8, 10)), ("c", Rows(6, 6, 6))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor") as run:
            for _ in range(2):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                if name == "c":
                    gradient = model.weights[1].grad
                    assert gradient is not None
                    gradient[2].mul_(scale)
                optimizer.step()
                run.step()
    assert (tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict.kind == "agree") == (scale == 1.0)


@pytest.mark.parametrize(("rate", "is_same"), [(0.1, True), (0.2, False)])
def test_views_of_two_parameters_that_start_equal_are_each_its_own(rate: float, is_same: bool, tmp_path: Path) -> None:
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    for name, second in (("r", 0.1), ("c", rate)):
        layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(2))
        layers[1].load_state_dict(layers[0].state_dict())
        groups = [{"params": layers[0].parameters()}, {"params": layers[1].parameters(), "lr": second}]
        optimizer = torch.optim.SGD(groups, lr=0.1, foreach=name == "c")
        with torch.no_grad():
            for layer in layers:
                layer.weight.copy_(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)))  # type: ignore
        with tensorprobe.capture(layers, tmp_path / name, level="L1", task="tensor"):
            y = x
            for layer in layers:
                y = F.linear(y, layer.weight) if name == "c" else y @ layer.weight.T  # type: ignore
            y.square().mean().backward()
            optimizer.step()
    assert (tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict.kind == "agree") == is_same


def test_norms_that_each_run_prints_in_its_own_way_are_no_difference(tmp_path: Path) -> None:
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))

    def record(name: str, look: Callable[[list[torch.Tensor]], object]) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(x).square().mean().backward()
            look([one.grad for one in model.parameters() if one.grad is not None])
            look([one.detach() for one in model.parameters()])

    record("r", lambda tensors: sum(float(one.double().square().sum()) for one in tensors) ** 0.5)
    record("c", lambda tensors: torch.cat([one.double().reshape(-1) for one in tensors]).norm().item())
    assert tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict.kind == "agree"


def test_what_is_computed_of_parameters_and_is_no_norm_is_a_result(tmp_path: Path) -> None:
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    for name, axis in (("r", -1), ("c", 0)):
        torch.manual_seed(0)
        model = nn.Linear(8, 8)
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(x).square().mean().backward()
            (model.weight @ model.weight).log_softmax(axis).diagonal().mean().item()
    assert tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict.kind != "agree"


def test_numbers_that_both_runs_draw_and_round_otherwise_are_one_start(tmp_path: Path) -> None:
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    drawn = torch.randn(8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for name, weight in (("r", (0.02 * drawn).float()), ("c", 0.02 * drawn.float())):
        model = nn.Linear(8, 8)
        with torch.no_grad():
            model.weight.copy_(weight)
            model.bias.zero_()
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(x).square().mean().backward()
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    assert verdict.kind == "agree" and any(
        "rounded: both runs were executed again" in line for line in verdict.evidence
    ), verdict


TURNS = torch.polar(torch.ones(8), torch.arange(8.0) / 3)


@pytest.mark.parametrize(("faster", "kind"), [(1.0, "agree"), (1.001, "entered")])
def test_a_complex_table_that_one_run_reads_is_rounded_as_its_parts_are(
    faster: float, kind: str, tmp_path: Path
) -> None:
    """The other run computes its real and its imaginary part, and has no such table."""

    def turn_by_parts(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        angle, x = faster * torch.arange(8.0) / 3, x @ model.weight
        return torch.cat([x * torch.cos(angle) + 1, x * torch.sin(angle)])

    def turn(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        turned = (x @ model.weight) * TURNS
        return torch.cat([turned.real + 1, turned.imag])

    assert compare(tmp_path, turn_by_parts, turn).kind == kind
