"""A loss may be multiplied, so that gradients do not vanish in a coarse dtype: no difference, if that is taken back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import tensorprobe
from tensorprobe.compare.result import Verdict
from tensorprobe.pytorch import PrecisionDebugger

Train = Callable[[nn.Module, torch.optim.Optimizer, torch.Tensor], None]


def record(folder: Path, kind: str, train: Train, steps: int) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-3)
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(folder), level="L1", task="tensor")
    for _ in range(steps):
        debugger.start(model)
        train(model, optimizer, x)
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
    PrecisionDebugger.reset()
    return folder


def train_plainly(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    model(x).square().mean().backward()
    optimizer.step()


def train_with_scaler() -> Train:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    return train


def train_by_hand(back: float) -> Train:
    def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        (model(x).square().mean() * 3).backward()
        for parameter in model.parameters() if back != 1 else ():
            assert parameter.grad is not None
            parameter.grad.div_(back)
        optimizer.step()

    return train


def compare(tmp_path: Path, kind: str, reference: Train, candidate: Train, steps: int = 1) -> Verdict:
    paths = [record(tmp_path / name, kind, one, steps) for name, one in (("r", reference), ("c", candidate))]
    return tensorprobe.compare(*paths).verdict


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("make_train", [train_with_scaler, lambda: train_by_hand(3)], ids=["GradScaler", "by hand"])
@pytest.mark.some(3)
def test_a_scale_that_is_taken_back_is_no_difference(
    make_train: Callable[[], Train], kind: str, tmp_path: Path
) -> None:
    verdict = compare(tmp_path, kind, train_plainly, make_train(), steps=3)
    assert verdict.kind == "agree", verdict.headline
    assert any("times those of the reference; this is undone before the update" in one for one in verdict.evidence)


def test_so_it_is_where_the_reference_has_the_scale(tmp_path: Path) -> None:
    verdict = compare(tmp_path, "SGD", train_with_scaler(), train_plainly)
    assert verdict.kind == "agree", verdict.headline


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])  # AdamW makes the same update of gradients of any size
@pytest.mark.parametrize("back", [1.0, 3.003])
@pytest.mark.some(3)
def test_a_scale_that_is_not_taken_back_is_a_difference(back: float, kind: str, tmp_path: Path) -> None:
    verdict = compare(tmp_path, kind, train_plainly, train_by_hand(back))
    assert verdict.kind == "source" and "Tensor.mul.0.forward" in verdict.headline, verdict.headline
