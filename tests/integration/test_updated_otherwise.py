"""Updates that are not the same, and those that only a guard against zero keeps apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensorprobe
from tensorprobe.pytorch import PrecisionDebugger

Clip = Callable[[nn.Module], Any]


def clip_by_function(model: nn.Module) -> None:
    """It adds 1e-6 to the norm."""
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def clip_by_hand(model: nn.Module, limit: float = 0.05) -> None:
    """As another framework does it, without anything beside the norm."""
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    norm = torch.stack([one.square().sum() for one in gradients]).sum().sqrt()
    for one in gradients:
        one.mul_(limit / torch.maximum(norm, torch.full_like(norm, limit)))


def train(folder: Path, level: str, rate: float, seed: int = 0, clip: Clip | None = None, **update: bool) -> Path:
    """The update comes after `stop`, as in the examples of the manuals; or, if gradients are clipped, before."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, **update)
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(folder), level=level, task="tensor" if clip else "statistics")
    data = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(5))
    for x in data:
        debugger.start(model)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if clip is None:
            debugger.stop()
        else:
            clip(model)
        optimizer.step()
        debugger.step()
    PrecisionDebugger.reset()
    return folder


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_it_is_said_that_the_update_was_another_one(level: str, tmp_path: Path) -> None:
    verdict = tensorprobe.compare(train(tmp_path / "r", level, 1e-2), train(tmp_path / "c", level, 2e-2)).verdict
    assert verdict.step == 1
    told = "The runs diverge between the steps: 0.weight and 3 others were updated differently"
    assert verdict.headline.startswith(told)
    assert any("to record them, call stop after the optimizer's step" in line for line in verdict.evidence)


def test_parameters_that_differ_from_the_first_step_on_are_named_as_another_start(tmp_path: Path) -> None:
    verdict = tensorprobe.compare(train(tmp_path / "r", "L1", 1e-2), train(tmp_path / "c", "L1", 1e-2, seed=1)).verdict
    assert verdict.headline.startswith(
        "The runs started from different values: 4 parameters differ before the first call: 0.weight"
    )


@pytest.mark.parametrize("is_fused", [False, True], ids=["written out", "one call"])
def test_what_guards_a_clipped_norm_from_zero_is_no_other_update(is_fused: bool, tmp_path: Path) -> None:
    folders = [
        train(tmp_path / name, "L1", 1e-2, clip=clip, foreach=False, fused=is_fused)
        for name, clip in (("r", clip_by_function), ("c", clip_by_hand))
    ]
    verdict = tensorprobe.compare(*folders, processes=1).verdict
    assert verdict.kind == "agree", verdict


def test_another_limit_of_a_clipped_norm_is_another_update(tmp_path: Path) -> None:
    reference = train(tmp_path / "r", "L1", 1e-2, clip=clip_by_function, foreach=False)
    candidate = train(tmp_path / "c", "L1", 1e-2, clip=partial(clip_by_hand, limit=0.051), foreach=False)
    verdict = tensorprobe.compare(reference, candidate, processes=1).verdict
    assert verdict.headline.startswith("The runs first differ in the update of the parameters"), verdict
