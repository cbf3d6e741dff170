"""A model inside DistributedDataParallel, as `show` tells it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tensorprobe
from tensorprobe.report.rank import build_rank_report
from tensorprobe.report.text import print_reports
from tensorprobe.store.reader import open_dump


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("is_wrapper_given", [True, False])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_the_forward_of_a_wrapped_model_is_shown_as_a_forward(
    tmp_path: Path, group: None, is_wrapper_given: bool, level: str
) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    wrapper = DistributedDataParallel(net)
    x = torch.ones(2, 4)
    with tensorprobe.capture(wrapper if is_wrapper_given else net, tmp_path / "dump", level=level):
        wrapper(x).sum().backward()
    console = Console(file=io.StringIO(), width=200, color_system=None)
    print_reports(console, [build_rank_report(rank) for rank in open_dump(tmp_path / "dump").ranks()])
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    heading = next(number for number, line in enumerate(lines) if line.startswith("forward "))
    assert "Sequential" in lines[heading + 1] or "DistributedDataParallel" in lines[heading + 1], lines
    assert not any("Sequential" in line and "distributed" in line for line in lines), lines
    assert "distributed" not in [line.split(" ")[0] for line in lines[: heading + 3]], lines
