"""What ranks end up with: gradients after all that was done to them, and updated weights."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import tensorprobe
from tensorprobe.replay.joint_step import build_joint_steps
from tensorprobe.replay.program import read_program
from tensorprobe.replay.rank_step import RankStep
from tensorprobe.store.reader import open_dump


def build(folder: Path, model: nn.Module, *, level: str = "mix", divisor: float = 1.0, rate: float = 0.0) -> RankStep:
    x = torch.ones(2, 3)
    with tensorprobe.capture(model, folder, level=level, task="tensor") as recording:
        model(x).sum().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            if divisor != 1:
                parameter.grad /= divisor
            if rate:
                with torch.no_grad():
                    parameter.sub_(parameter.grad, alpha=rate)
        recording.step()
    (step,) = build_joint_steps(
        [read_program(rank) for rank in open_dump(folder).ranks()], torch.device("cpu")
    ).values()
    return step


def test_a_gradient_is_the_one_that_the_program_divided(tmp_path: Path) -> None:
    for level in ("L1", "mix"):
        step = build(tmp_path / level, nn.Linear(3, 4), level=level, divisor=4)
        assert step.gradients["weight"].tolist() == [[0.5] * 3] * 4
        assert step.updated == {}


def test_a_weight_is_known_before_and_after_its_update(tmp_path: Path) -> None:
    model = nn.Linear(3, 4)
    before = model.weight.detach().double().numpy().copy()
    step = build(tmp_path, model, rate=0.5)
    assert step.parameters["weight"].tolist() == before.tolist()
    assert step.updated["weight"].tolist() == (before - 1).tolist()
