"""MindSpore processes under msrun: one folder per rank, collectives under Distributed, the rank filter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.msrun import run_msrun

SCRIPT = """
import sys

import mindspore
import numpy as np
import tensorprobe
from mindspore import Tensor, nn, ops
from mindspore.communication import get_rank, init
from mindspore.mint import distributed
from mindspore.mint.distributed import all_reduce
from tensorprobe.mindspore import seed_all

folder = sys.argv[1]


def full(value, shape=(2,)):
    return Tensor(np.full(shape, value, np.float32))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(3, 2)
        self.reduce = ops.AllReduce()

    def construct(self, x):
        return self.reduce(self.fc(x))


reduction = None


@mindspore.jit
def reduce_compiled(x):
    return reduction(x)


def train(net):
    rank = get_rank()
    x = full(rank + 1.0, (2, 3))
    loss, gradients = mindspore.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())(x)
    reducer = nn.DistributedGradReducer(net.trainable_params(), True, 2)
    reduced = reducer(gradients)

    gathered = ops.AllGather()(x)
    (first,) = ops.Broadcast(0)((x,))

    y = full(rank + 1.0)
    all_reduce(y)
    handle = distributed.all_reduce(y, async_op=True)
    z = ops.relu(x)
    handle.wait()

    parts = [full(0.0), full(0.0)]
    distributed.all_gather(parts, full(rank + 1.0))
    distributed.broadcast(y, src=0)
    objects = [None, None]
    distributed.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    distributed.barrier()
    assert distributed.P2POp(distributed.isend, y, 1 - rank)
    compiled = reduce_compiled(x)
    values = [loss, *gradients, *reduced, gathered, first, y, z, *parts, compiled]
    return [value.asnumpy().tolist() for value in values], distributed.all_reduce(full(1.0), async_op=True)


relu = nn.ReLU()
with tensorprobe.capture(relu, folder + "/early"):
    relu(full(5.0))
tensorprobe.save(folder + "/saved/early", full(5.0))

init()
tensorprobe.save(folder + "/saved/late", full(get_rank()))
reduction = ops.AllReduce()
with seed_all():
    net = Net()
plain, _ = train(net)
call = ops.AllReduce.__call__

with tensorprobe.capture(net, folder + "/late"):
    recorded, forgotten = train(net)
forgotten.wait()
assert recorded == plain, (recorded, plain)
assert ops.AllReduce.__call__ is call
assert distributed.all_reduce is all_reduce

with tensorprobe.capture(net, folder + "/one", rank=[1]):
    net(full(1.0, (2, 3)))
print("trained")
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumps")
    (folder / "train.py").write_text(SCRIPT)
    assert "trained" in run_msrun(2, folder / "train.py", str(folder))
    return folder


def read(folder: Path, rank: int, name: str = "dump.json") -> Any:
    return json.loads((folder / "step0" / f"rank{rank}" / name).read_text())


def records_of(dumps: Path, rank: int) -> dict[str, Any]:
    records: dict[str, Any] = read(dumps / "late", rank)["data"]
    return records


@pytest.mark.parametrize("name", ["early", "late"])
def test_each_rank_has_its_folder_and_the_scheduler_has_none(dumps: Path, name: str) -> None:
    """`early` began before the processes knew each other; the scheduler runs that part of the program too."""
    assert sorted(path.name for path in (dumps / name / "step0").iterdir()) == ["rank0", "rank1"]


def test_save_writes_into_the_folder_of_its_rank(dumps: Path) -> None:
    saved = dumps / "saved"
    assert sorted(path.name for path in saved.iterdir()) == ["rank0", "rank1"]
    for rank in (0, 1):
        assert sorted(path.name for path in (saved / f"rank{rank}").iterdir()) == ["0_early.npy", "1_late.npy"]
        assert np.array_equal(np.load(saved / f"rank{rank}" / "1_late.npy"), [rank, rank])


def test_the_rank_filter(dumps: Path) -> None:
    assert [path.name for path in (dumps / "one" / "step0").iterdir()] == ["rank1"]


def test_a_primitive_that_the_model_holds(dumps: Path) -> None:
    inputs = [records_of(dumps, rank)["Distributed.AllReduce.0.forward"]["input_args"][0]["Mean"] for rank in (0, 1)]
    for rank in (0, 1):
        records = records_of(dumps, rank)
        reduced = records["Distributed.AllReduce.0.forward"]
        assert reduced["output"][0]["Mean"] == pytest.approx(sum(inputs))
        assert "caller" not in reduced
        assert read(dumps / "late", rank, "construct.json")["Distributed.AllReduce.0.forward"] == "Cell.Net.forward.0"
        assert records["Distributed.AllReduce.0.backward"]["output"][0]["Max"] == 2
        assert not any(name.startswith("Primitive.reduce.") for name in records)


def test_primitives_that_the_program_makes_on_the_way(dumps: Path) -> None:
    for rank in (0, 1):
        records = records_of(dumps, rank)
        gathered = records["Distributed.AllGather.0.forward"]
        assert gathered["input_args"][0]["Max"] == rank + 1
        assert gathered["output"][0]["shape"] == [4, 3]
        assert records["Distributed.Broadcast.0.forward"]["output"][0]["Max"] == 1


def test_a_function_that_writes_into_its_argument(dumps: Path) -> None:
    for rank in (0, 1):
        records = records_of(dumps, rank)
        reduced = records["Distributed.all_reduce.0.forward"]
        assert (reduced["input_args"][0]["Max"], reduced["output"][0]["Max"]) == (rank + 1, 3)
        gathered = records["Distributed.all_gather.0.forward"]
        assert [leaf["Max"] for leaf in gathered["output"][0]] == [1, 2]
        assert records["Distributed.broadcast.0.forward"]["input_kwargs"]["src"]["value"] == 0
        assert "Distributed.barrier.0.forward" in records


def test_an_asynchronous_one_is_recorded_when_it_is_waited_for(dumps: Path) -> None:
    records = records_of(dumps, 0)
    names = list(records)
    assert records["Distributed.all_reduce.1.forward"]["output"][0]["Max"] == 6
    assert names.index("Functional.relu.0.forward") < names.index("Distributed.all_reduce.1.forward")


def test_one_that_nobody_waits_for_is_recorded_without_a_result_and_counted(dumps: Path) -> None:
    last = records_of(dumps, 0)["Distributed.all_reduce.2.forward"]
    assert (last["input_args"][0]["Max"], last["output"]) == (1, [])
    assert "nothing was seen to wait for it" in last["note"]
    coverage = read(dumps / "late", 0, "run.json")["coverage"]
    assert coverage["unseen"]["result of an asynchronous collective that nothing was seen to wait for"] == 1
    assert coverage["failed"] == 0


def test_those_that_mindspore_makes_itself_are_its_own(dumps: Path) -> None:
    """Collectives of objects. The reduction of gradients is a function that MindSpore compiles: one record."""
    records = records_of(dumps, 0)
    callers = {name: record.get("caller") for name, record in records.items() if "DistComm" in name}
    assert set(callers.values()) == {"distributed"}
    reduced = next(record for name, record in records.items() if name.startswith("Jit."))
    assert [leaf["shape"] for leaf in reduced["output"]] == [[2, 3], [2]]
