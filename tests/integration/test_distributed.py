"""Several ranks: one folder per rank, collectives under Distributed, the rank filter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorprobe.store.reader import open_dump
from tests.integration.torchrun import run_ranks

SCRIPT = """
import sys
import torch
import torch.distributed as dist
import tensorprobe
from torch import nn
from torch.distributed import P2POp, all_reduce, irecv, isend
from torch.distributed._functional_collectives import all_reduce as functional_all_reduce

torch.manual_seed(0)
model = nn.Linear(3, 2)

def train():
    rank = dist.get_rank()
    x = torch.full((2, 3), float(rank + 1))
    y = model(x)
    all_reduce(x)

    work = dist.all_reduce(x, async_op=True)
    torch.relu(y)
    work.wait()

    sent, received = torch.full((2,), 10.0 + rank), torch.zeros(2)
    operations = [P2POp(isend, sent, 1 - rank), P2POp(irecv, received, 1 - rank)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert received[0] == 11 - rank

    # If the capture waited for this one, rank 0 would never send what rank 1 needs before it takes part.
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
    reduced = functional_all_reduce(torch.ones(2), "sum", dist.group.WORLD)
    flat = reduced.view(-1)
    if rank == 0:
        dist.send(torch.zeros(1), 1)
    assert (flat + 1)[0] == 3

    gathered = [None, None]
    dist.all_gather_object(gathered, {"rank": rank})
    y.sum().backward()
    return dist.all_reduce(torch.ones(2), async_op=True)


with tensorprobe.capture(model, sys.argv[1] + "/early", level="mix"):
    dist.init_process_group("gloo")
    forgotten = train()
forgotten.wait()
with tensorprobe.capture(model, sys.argv[1] + "/late", level="mix"):
    forgotten = train()
forgotten.wait()
tensorprobe.save(sys.argv[1] + "/saved/x", torch.full((2,), float(dist.get_rank())))
assert dist.all_reduce is all_reduce
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumps")
    (folder / "train.py").write_text(SCRIPT)
    run_ranks(2, folder / "train.py", str(folder))
    return folder


@pytest.fixture(params=["early", "late"])
def dump(request: pytest.FixtureRequest, dumps: Path) -> Path:
    """Of ranks that began to record before they joined the process group, or after."""
    folder: Path = dumps / request.param
    return folder


def read(dump: Path, rank: int, name: str = "dump.json") -> Any:
    return json.loads((dump / "step0" / f"rank{rank}" / name).read_text())


AGAIN = """
import sys, torch, torch.distributed as dist, tensorprobe
from tensorprobe.pytorch import PrecisionDebugger

dist.init_process_group("gloo")
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L1")
for step in range(int(sys.argv[2])):
    debugger.start()
    torch.sin(torch.ones(2))
    debugger.stop()
    debugger.step()
for _ in range(2):
    with tensorprobe.capture(None, sys.argv[1] + "/contexts", level="L1"):
        torch.sin(torch.ones(2))
dist.destroy_process_group()
"""


def test_ranks_share_the_id_of_their_run_and_the_next_run_replaces_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(AGAIN)
    dump, seen = tmp_path / "dump", set()
    for ranks, steps in ((2, 3), (1, 1), (2, 2)):
        run_ranks(ranks, tmp_path / "train.py", str(dump), str(steps))
        found = list(open_dump(dump).select().ranks())
        assert [rank.name for rank in found] == [f"step{s}/rank{r}" for s in range(steps) for r in range(ranks)]
        (run_id,) = {rank.run["run_id"] for rank in found}
        (second,) = {rank.run["run_id"] for rank in open_dump(dump / "contexts").select().ranks()}
        assert second.endswith(".2")
        seen.add(run_id)
        assert sorted(path.name for path in dump.iterdir()) == ["contexts", *(f"step{s}" for s in range(steps))]
    assert len(seen) == 3


def test_each_rank_has_its_folder(dump: Path) -> None:
    assert sorted(path.name for path in (dump / "step0").iterdir()) == ["rank0", "rank1"]
    for rank in (0, 1):
        assert read(dump, rank)["data"]["Module.Linear.forward.0"]["input_args"][0]["Max"] == rank + 1


def test_save_writes_into_the_folder_of_its_rank(dumps: Path) -> None:
    saved = dumps / "saved"
    assert sorted(path.name for path in saved.iterdir()) == ["rank0", "rank1"]
    for rank in (0, 1):
        assert [path.name for path in (saved / f"rank{rank}").iterdir()] == ["0_x.npy"]
        assert np.array_equal(np.load(saved / f"rank{rank}" / "0_x.npy"), [rank, rank])


def test_a_collective_is_recorded_also_by_a_name_that_was_imported_before(dump: Path) -> None:
    for rank in (0, 1):
        reduced = read(dump, rank)["data"]["Distributed.all_reduce.0.forward"]
        assert reduced["input_args"][0]["Max"] == rank + 1
        assert reduced["output"][0]["Max"] == 3
        assert "caller" not in reduced


def test_an_asynchronous_collective_is_recorded_when_it_is_waited_for(dump: Path) -> None:
    records = read(dump, 0)["data"]
    names = list(records)
    assert records["Distributed.all_reduce.1.forward"]["output"][0]["Max"] == 6
    assert names.index("Torch.relu.0.forward") < names.index("Distributed.all_reduce.1.forward")


def test_what_is_sent_and_received_in_a_batch_is_recorded(dump: Path) -> None:
    for rank in (0, 1):
        records = read(dump, rank)["data"]
        assert records["Distributed.isend.0.forward"]["input_args"][0]["Max"] == 10 + rank
        received = records["Distributed.irecv.0.forward"]
        assert received["input_args"][0]["Max"] == 0
        assert received["input_kwargs"]["group_src"]["value"] == 1 - rank
        assert received["output"][0]["Max"] == 11 - rank


def test_a_functional_collective_is_recorded_when_its_result_is_used(dump: Path) -> None:
    for rank in (0, 1):
        records = read(dump, rank)["data"]
        reduced = records["Distributed._c10d_functional.all_reduce.0.forward"]
        assert reduced["input_args"][0]["Max"] == 1
        assert reduced["output"][0]["Max"] == 2
        assert "caller" not in reduced
        assert records["Tensor.add.0.forward"]["input_args"][0]["Max"] == 2


def test_collectives_that_move_objects_are_calls_of_the_framework(dump: Path) -> None:
    records = read(dump, 0)["data"]
    assert {record.get("caller") for name, record in records.items() if name.startswith("Distributed.all_gather.")} == {
        "distributed"
    }


def test_a_collective_that_nobody_waits_for_is_recorded_without_a_result_and_counted(dump: Path) -> None:
    last = read(dump, 0)["data"]["Distributed.all_reduce.2.forward"]
    assert last["input_args"][0]["Max"] == 1
    assert last["output"] == []
    assert "nothing was seen to wait for it" in last["note"]
    coverage = read(dump, 0, "run.json")["coverage"]
    assert coverage["unseen"] == {"result of an asynchronous collective that nothing was seen to wait for": 1}
    assert coverage["failed"] == 0
