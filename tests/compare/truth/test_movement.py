"""Where the update itself is not recorded, the parameters of two steps tell how far it went."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tensorprobe
from tensorprobe.compare.result import Verdict
from tensorprobe.compare.truth.movement import EarlierStep, Movement, find_moved_otherwise, measure_spread
from tensorprobe.compare.truth.start import Origin, pair_leaves
from tensorprobe.pytorch import PrecisionDebugger
from tensorprobe.replay.result import Coverage
from tensorprobe.replay.true_step import TrueStep, TrueValue

WAY = np.random.default_rng(0).standard_normal(100)


def make_movement(apart: np.ndarray) -> Movement:  # type: ignore[type-arg]
    return Movement("weight", float(np.linalg.norm(WAY)), WAY[: apart.size], apart, float(np.linalg.norm(apart)))


@pytest.mark.parametrize("factor", [1.01, 0.999, 3.16, -1.0])
def test_another_factor_is_measured(factor: float) -> None:
    found = make_movement((1 - factor) * WAY).factor
    assert found == pytest.approx(factor)


@pytest.mark.parametrize(
    "apart",
    [0 * WAY, 1e-5 * WAY, 0.01 * np.abs(WAY), 0.01 / WAY, 0.01 * WAY[:4]],
    ids=["nothing", "a setting in float32", "another way", "an epsilon", "too few numbers"],
)
def test_what_is_no_other_factor_is_not_called_one(apart: np.ndarray) -> None:  # type: ignore[type-arg]
    assert make_movement(apart).factor is None


def record(folder: Path, make_update: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(folder), level="L1", task="tensor")
    for _ in range(3):
        debugger.start(model)
        model(torch.ones(2, 6)).square().mean().backward()
        debugger.stop()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data = parameter.data - make_update(parameter.grad)
            parameter.grad = None
        debugger.step()
    PrecisionDebugger.reset()
    return folder


def compare(tmp_path: Path, reference: Callable[..., torch.Tensor], candidate: Callable[..., torch.Tensor]) -> Verdict:
    return tensorprobe.compare(record(tmp_path / "r", reference), record(tmp_path / "c", candidate)).verdict


def test_a_rate_that_is_off_by_a_thousandth_is_told_though_no_update_is_recorded(tmp_path: Path) -> None:
    verdict = compare(tmp_path, lambda gradient: 0.1 * gradient, lambda gradient: 0.1001 * gradient)
    assert verdict.step == 1 and "The runs diverge between the steps" in verdict.headline
    assert any("they all moved 1.001 times as far as in the reference" in line for line in verdict.evidence)


def test_the_same_rate_in_another_order_of_rounding_agrees(tmp_path: Path) -> None:
    verdict = compare(tmp_path, lambda gradient: 0.1 * gradient, lambda gradient: 0.3 * (gradient / 3))
    assert verdict.kind == "agree", verdict.headline


def test_an_epsilon_in_another_place_agrees(tmp_path: Path) -> None:
    def divide(gradient: torch.Tensor, epsilon: float) -> torch.Tensor:
        return 0.01 * gradient / (gradient.square().sqrt() + epsilon)

    verdict = compare(tmp_path, lambda gradient: divide(gradient, 1e-8), lambda gradient: divide(gradient, 3e-7))
    assert verdict.kind == "agree", verdict.headline


def record_norm(folder: Path, *, is_scaled: bool) -> Path:
    """A bias before a norm, which the second step takes the kept numbers for: its gradient is rounding in the first."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
    x = torch.randn(16, 6)
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(folder), level="L1", task="tensor")
    for step in range(2):
        model.train(step == 0)
        debugger.start(model)
        hidden = model[:3](x) if not is_scaled else model[2](model[1](2 * model[0](x) / 2))
        model[3](hidden).pow(3).mean().backward()
        debugger.stop()
        noise = torch.Generator().manual_seed(int(is_scaled))
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            rounding = 1e-9 * torch.randn(parameter.shape, generator=noise) if name == "0.bias" else 0.0
            parameter.data = parameter.data - 100 * (parameter.grad + rounding)
            parameter.grad = None
        debugger.step()
    PrecisionDebugger.reset()
    return folder


def test_what_rounding_alone_has_moved_is_not_said_to_be_updated_otherwise(tmp_path: Path) -> None:
    runs = (record_norm(tmp_path / name, is_scaled=name == "c") for name in ("r", "c"))
    verdict = tensorprobe.compare(*runs).verdict
    assert verdict.kind == "agree", verdict.headline


def test_an_update_may_go_apart_as_its_gradients_do() -> None:
    """Parameters that rounding has moved a little have other gradients, and go on to be further apart."""
    weight = np.linspace(1.0, 2.0, 10)
    then, candidate = weight + 0.1, weight + 0.002
    leaves = [TrueValue(0, one, "float32", None, "input.0", "weight", "weight") for one in (weight, candidate)]
    for leaf in leaves:
        leaf.gradient = np.ones(10)
    steps = {
        side: TrueStep(side, {}, [leaf], Coverage())
        for side, leaf in zip(("reference", "candidate"), leaves, strict=True)
    }
    origin = Origin("weight", np.arange(10), np.arange(10))
    for spread, is_told in ((0.0, True), (0.02, False)):
        earlier = EarlierStep({"weight": [origin]}, {"weight": then}, spread={"weight": spread})
        moved = find_moved_otherwise([pair_leaves(*leaves)], steps, earlier, 2.0**-24)
        assert bool(moved) is is_told


def test_the_spread_is_how_far_the_gradients_of_one_run_are_from_those_with_other_parameters() -> None:
    def make_step(gradient: float) -> TrueStep:
        leaf = TrueValue(0, np.ones(3), "float32", None, "input.0", "weight", "weight")
        leaf.gradient = np.full(3, gradient)
        return TrueStep("candidate", {}, [leaf], Coverage())

    assert measure_spread(make_step(1.1), make_step(1.0)) == {"weight": pytest.approx(0.1)}
