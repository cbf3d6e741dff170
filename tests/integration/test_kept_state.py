"""What a step leaves for the next one besides its parameters, as the running statistics of a norm: training does not
show it, evaluation does. It is compared as what a step is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.compare.result import Comparison
from tensorprobe.pytorch import PrecisionDebugger

LEVELS = pytest.mark.parametrize("level", ["L0", "L1", "mix"])
TASKS = pytest.mark.parametrize("task", ["tensor", "statistics"])


class OtherLinear(nn.Linear):
    """The same in two halves, which rounds otherwise."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x[:, :3], self.weight[:, :3]) + F.linear(x[:, 3:], self.weight[:, 3:], self.bias)


class OtherNorm(nn.Module):
    """The same with other names, and without a count of batches."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("moving_mean", torch.zeros(width))
        self.register_buffer("moving_variance", torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.moving_mean, self.moving_variance
        return F.batch_norm(x, *kept, self.gamma, self.beta, training=True)


class Net(nn.Module):
    """`share`: of the new mean in the running one."""

    def __init__(self, share: float, is_port: bool) -> None:
        super().__init__()
        self.first = OtherLinear(6, 8) if is_port else nn.Linear(6, 8)
        self.norm = OtherNorm(8) if is_port else nn.BatchNorm1d(8, momentum=share)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


def record(folder: Path, level: str, task: str, **how: Any) -> Path:
    """Four steps. `forgets`: the running statistics begin anew with every step."""
    torch.manual_seed(0)
    net = Net(how.get("share", 0.1), how.get("is_port", False))
    with torch.no_grad():
        for parameter in (*net.first.parameters(), *net.last.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    optimizer = how.get("optimizer", torch.optim.SGD)(net.parameters(), lr=1e-2)
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(folder), level=level, task=task)
    for step in range(4):
        x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step)) + 1
        if how.get("forgets"):
            net.norm.reset_running_stats()  # type: ignore[operator]
        debugger.start(net)
        net(x).square().mean().backward()
        debugger.stop()
        optimizer.step()
        optimizer.zero_grad()
        debugger.step()
    PrecisionDebugger.reset()
    return folder


def compare(tmp_path: Path, level: str, task: str, both: Any = None, **how: Any) -> Comparison:
    """`both`: how both runs are made, besides."""
    reference = record(tmp_path / "r", level, task, **(both or {}))
    return tensorprobe.compare(reference, record(tmp_path / "c", level, task, **(both or {}), **how), processes=1)


@LEVELS
@TASKS
@pytest.mark.parametrize("how", [{"share": 0.9}, {"forgets": True}], ids=["another share of the new mean", "forgets"])
@pytest.mark.some(2)
def test_a_norm_that_keeps_other_statistics_is_named(level: str, task: str, how: Any, tmp_path: Path) -> None:
    verdict = compare(tmp_path, level, task, **how).verdict
    assert verdict.call is not None and verdict.kind == "entered", verdict.headline
    assert verdict.call.module_path == "norm", verdict.headline


@LEVELS
@TASKS
@pytest.mark.some(2)
def test_a_port_that_keeps_the_same_under_other_names_agrees(level: str, task: str, tmp_path: Path) -> None:
    verdict = compare(tmp_path, level, task, is_port=True).verdict
    assert verdict.kind == "agree", verdict.headline


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_means_that_part_by_what_was_given_to_the_norm_are_no_mistake_of_it(level: str, tmp_path: Path) -> None:
    """The gradient of a bias before a norm is nothing but rounding, and Adam makes whole steps of it: the running means
    part, and nothing that is computed from them does."""
    result = compare(tmp_path, level, "statistics", both={"optimizer": torch.optim.Adam}, is_port=True)
    assert result.verdict.kind == "agree", result.verdict.headline


class Places(nn.Module):
    """A table of places that grows when it is too short, to so many times what is needed."""

    def __init__(self, spare: int) -> None:
        super().__init__()
        self.layer, self.spare = nn.Linear(6, 6), spare
        self.register_buffer("table", self.make(4))

    def make(self, length: int) -> torch.Tensor:
        return torch.sin(torch.arange(length)[:, None] / torch.arange(1, 7)[None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > len(self.table):
            self.table = self.make(self.spare * x.shape[1])
        return self.layer(x) * self.table[: x.shape[1]]


@LEVELS
@TASKS
@pytest.mark.some(2)
def test_a_table_that_has_grown_further_is_no_mistake(level: str, task: str, tmp_path: Path) -> None:
    paths = []
    for spare in (1, 2):
        torch.manual_seed(0)
        net = Places(spare)
        PrecisionDebugger.reset()
        debugger = PrecisionDebugger(dump_path=str(tmp_path / str(spare)), level=level, task=task)
        for step, length in enumerate((6, 8, 5)):
            x = torch.randn(4, length, 6, generator=torch.Generator().manual_seed(step))
            debugger.start(net)
            net(x).square().mean().backward()
            debugger.stop()
            debugger.step()
        PrecisionDebugger.reset()
        paths.append(tmp_path / str(spare))
    assert tensorprobe.compare(*paths).verdict.kind == "agree"
