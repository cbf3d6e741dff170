"""Parameters that FSDP2 puts together from ranks, told from the collectives of one rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import tensorprobe
from tensorprobe.replay.gathered_parameter import find_gathered
from tensorprobe.replay.program import read_program
from tensorprobe.store.reader import open_dump


@pytest.fixture
def group() -> Iterator[None]:
    """The first of two ranks; nothing comes from the other."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def record(folder: Path, *, is_sharded: bool, divisor: float = 1.0) -> dict[str, tuple[int, ...]]:
    from torch.distributed._composable.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    if is_sharded:
        mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
    with tensorprobe.capture(model, folder, level="L1", task="tensor") as recording:
        model(torch.ones(3, 4)).sum().backward()
        for parameter in model.parameters() if divisor != 1 else ():
            parameter.grad /= divisor
        recording.step()
    (rank,) = open_dump(folder).ranks()
    return find_gathered(read_program(rank))


@pytest.mark.usefixtures("group")
def test_the_gradients_of_gathered_parameters_are_averaged_over_their_ranks(tmp_path: Path) -> None:
    found = record(tmp_path, is_sharded=True)
    assert found == dict.fromkeys(("0.weight", "0.bias", "1.weight", "1.bias"), (0, 1))


@pytest.mark.usefixtures("group")
def test_of_gradients_that_the_program_writes_to_afterwards_nothing_is_said(tmp_path: Path) -> None:
    assert record(tmp_path, is_sharded=True, divisor=2) == {}


@pytest.mark.usefixtures("group")
def test_a_parameter_that_is_whole_is_none_of_them(tmp_path: Path) -> None:
    assert record(tmp_path, is_sharded=False) == {}
