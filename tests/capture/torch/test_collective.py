"""Collectives of one process: when their records are written, and that torch.distributed stays what it is."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work, all_reduce, distributed_c10d, irecv, isend
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from tensorprobe.capture.session import Session
from tensorprobe.capture.torch.collective_patch import find_cell
from tests.capture.torch.dump import DumpOnDisk
from tests.capture.torch.training import open_session

UNSEEN = "result of an asynchronous collective that nothing was seen to wait for"


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("store") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = open_session(tmp_path, level="L1", task="tensor")
    session.start()
    yield session
    session.close()


def close(session: Session, tmp_path: Path) -> DumpOnDisk:
    session.stop()
    assert session.recorder.coverage.failed == 0
    session.close()
    return DumpOnDisk(tmp_path / "step0" / "rank0")


def test_a_name_imported_early_is_seen(session: Session, tmp_path: Path) -> None:
    all_reduce(torch.ones(2))
    records = close(session, tmp_path).records
    assert records["Distributed.all_reduce.0.forward"]["output"][0]["Max"] == 1


def test_functions_of_torch_distributed_stay_the_very_same(session: Session) -> None:
    assert dist.all_reduce is all_reduce
    assert distributed_c10d.isend is dist.isend is isend
    assert dist.P2POp(isend, torch.ones(1), peer=0).op is isend
    assert dist.P2POp(irecv, torch.ones(1), peer=0).op is irecv


def test_everything_is_as_before_after_the_window(tmp_path: Path) -> None:
    cells = [find_cell(getattr(distributed_c10d, name)) for name in ("all_reduce", "broadcast", "barrier")]

    def state() -> list[Any]:
        owners = (ProcessGroup, Work, torch._C.Future, dist.Reducer, functional.AsyncCollectiveTensor)
        return [*[cell.cell_contents for cell in cells], dist._broadcast_coalesced, *[dict(vars(o)) for o in owners]]

    before = state()
    session = open_session(tmp_path, level="mix")
    session.start(torch.nn.Linear(1, 1))
    assert state() != before
    session.close()
    assert state() == before


def wait(work: Any) -> None:
    work.wait()


def look_until_completed(work: Any) -> None:
    while not work.is_completed():
        pass


def wait_for_future(work: Any) -> None:
    work.get_future().wait()


def take_value_of_future(work: Any) -> None:
    future = work.get_future()
    del work
    future.wait()
    future.value()


@pytest.mark.parametrize("finish", [wait, look_until_completed, wait_for_future, take_value_of_future])
def test_the_record_is_written_when_the_program_knows_that_the_result_is_there(
    session: Session, tmp_path: Path, finish: Any
) -> None:
    work = dist.all_reduce(torch.ones(2), async_op=True)
    torch.zeros(1)
    finish(work)
    torch.full((1,), 1.0)
    records = close(session, tmp_path).records
    names = list(records)
    assert names[1:] == ["Torch.zeros.0.forward", "Distributed.all_reduce.0.forward", "Torch.full.0.forward"]
    record = records["Distributed.all_reduce.0.forward"]
    assert record["input_args"][0]["Max"] == record["output"][0]["Max"] == 1
    assert "note" not in record


def test_waiting_twice_makes_one_record(session: Session, tmp_path: Path) -> None:
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    work.wait()
    close(session, tmp_path)
    assert session.recorder.coverage.recorded == 2


def test_what_was_written_afterwards_is_not_taken_for_the_result(session: Session, tmp_path: Path) -> None:
    tensor = torch.ones(2)
    dist.all_reduce(tensor, async_op=True).wait()
    tensor.fill_(5)
    dump = close(session, tmp_path)
    assert dump.tensor(dump.records["Distributed.all_reduce.0.forward"]["output"][0]).tolist() == [1, 1]


def test_a_collective_that_nobody_can_wait_for_any_more_keeps_no_tensor_alive(session: Session, tmp_path: Path) -> None:
    tensor = torch.ones(2)
    gone = weakref.ref(tensor)
    work = dist.all_reduce(tensor, async_op=True)
    while not torch._C._distributed_c10d.Work.is_success(work):  # an answer that nobody listens to
        pass
    del work, tensor
    gc.collect()
    assert gone() is None
    dist.barrier()  # here the program is seen again
    records = close(session, tmp_path).records
    assert "nothing was seen to wait for it" in records["Distributed.all_reduce.0.forward"]["note"]
    assert list(records)[-1] == "Distributed.barrier.0.forward"
    assert session.recorder.coverage.unseen == {UNSEEN: 1}


def test_the_result_says_which_collective_made_it(session: Session, tmp_path: Path) -> None:
    tensor = torch.zeros(3) + 1
    dist.all_reduce(tensor)
    tensor * 2
    gathered = torch.zeros(3)
    dist.all_gather_into_tensor(output_tensor=gathered, input_tensor=tensor)
    gathered * 2
    records = close(session, tmp_path).records
    assert records["Distributed.all_reduce.0.forward"]["input_args"][0]["source"] == "Tensor.add.0.forward"
    assert records["Tensor.mul.0.forward"]["input_args"][0]["source"] == "Distributed.all_reduce.0.forward"
    assert records["Tensor.mul.1.forward"]["input_args"][0]["source"] == "Distributed.all_gather_into_tensor.0.forward"


def test_groups_and_reductions_are_named(session: Session, tmp_path: Path) -> None:
    dist.all_reduce(torch.ones(1), op=dist.ReduceOp.MAX, group=dist.group.WORLD)
    arguments = close(session, tmp_path).records["Distributed.all_reduce.0.forward"]["input_kwargs"]
    assert "MAX" in arguments["op"]["value"]
    assert arguments["group"]["group_ranks"] == [0]


def test_a_collective_that_raises_is_recorded_as_failed(session: Session, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="rank"):
        dist.broadcast(torch.ones(1), src=7)
    assert "rank" in close(session, tmp_path).records["Distributed.broadcast.0.forward"]["failed"]


def test_collectives_of_a_coalescing_manager_are_recorded_when_they_are_carried_out(
    session: Session, tmp_path: Path
) -> None:
    first, second = torch.ones(2), torch.ones(3)
    with distributed_c10d._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(first)
        dist.all_reduce(second)
    torch.zeros(1)
    manager.wait()
    records = close(session, tmp_path).records
    assert list(records)[2:] == [
        "Torch.zeros.0.forward",
        "Distributed.all_reduce.0.forward",
        "Distributed.all_reduce.1.forward",
    ]


def test_a_call_of_a_method_of_the_group_is_recorded(session: Session, tmp_path: Path) -> None:
    dist.group.WORLD.allreduce([torch.full((2,), 3.0)]).wait()
    records = close(session, tmp_path).records
    assert records["Distributed.allreduce.0.forward"]["output"][0][0]["Max"] == 3


def test_only_the_outermost_collective_is_a_record(session: Session, tmp_path: Path) -> None:
    dist.all_gather_into_tensor(torch.zeros(2), torch.ones(2))
    records = close(session, tmp_path).records
    assert [name for name in records if name.startswith("Distributed")] == [
        "Distributed.all_gather_into_tensor.0.forward"
    ]


def test_a_collective_that_is_not_recorded_still_makes_values_unknown(tmp_path: Path) -> None:
    rules = tmp_path / "api.yaml"
    rules.write_text("distributed: {remove: [all_reduce]}")
    session = open_session(tmp_path / "dump", level="L1", api_yaml=rules)
    session.start()
    tensor = torch.zeros(2, 2) + 1
    tensor * 2
    with torch.no_grad():
        dist.all_reduce(tensor)
    before = session.recorder.reader.values.find(tensor, None)[0]  # type: ignore[attr-defined]
    session.close()
    assert before is None
    assert not any(name.startswith("Distributed") for name in DumpOnDisk(tmp_path / "dump/step0/rank0").records)


def test_a_functional_collective_is_recorded_when_it_is_waited_for(session: Session, tmp_path: Path) -> None:
    result = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
    part = result.view(2)[:1]
    assert not result.completed  # the capture did not wait
    torch.zeros(1)
    part + 1
    records = close(session, tmp_path).records
    names = list(records)
    assert names.index("Torch.zeros.0.forward") < names.index("Distributed._c10d_functional.all_reduce.0.forward")
    assert records["Distributed._c10d_functional.all_reduce.0.forward"]["output"][0]["Norm"] == pytest.approx(2**0.5)
    assert records["Tensor.__getitem__.0.forward"]["output"][0]["Norm"] == 1
    assert records["Tensor.add.0.forward"]["input_args"][0]["Norm"] == 1


def test_a_functional_collective_that_is_waited_for_at_once_is_complete(session: Session, tmp_path: Path) -> None:
    functional.wait_tensor(torch.ops._c10d_functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD.group_name))
    records = close(session, tmp_path).records
    assert records["Distributed._c10d_functional.all_reduce.0.forward"]["output"][0]["Max"] == 1
    assert not any("wait_tensor" in name for name in records)


@pytest.mark.parametrize("placement", [Shard(0), Replicate(), Partial()])
def test_a_distributed_tensor_is_read_from_its_local_part(session: Session, tmp_path: Path, placement: Any) -> None:
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    tensor = DTensor.from_local(torch.ones(2, 3), mesh, [placement], run_check=False)
    tensor * 2
    dump = close(session, tmp_path)
    leaf = dump.records["Tensor.mul.0.forward"]["input_args"][0]
    assert leaf["placements"] == [repr(placement)]
    assert leaf["mesh"] == {"shape": [1], "names": ["tp"], "ranks": [0]}
    assert leaf["local_shape"] == [2, 3]
    assert leaf["Norm"] == pytest.approx(6**0.5)
    assert type(dump.tensor(leaf)) is torch.Tensor


def test_shares_of_the_gradient_of_a_distributed_tensor_are_added_without_a_collective(tmp_path: Path) -> None:
    mesh = init_device_mesh("cpu", (1,))
    model = torch.nn.Identity()
    leaf = DTensor.from_local(torch.ones(2), mesh, [Shard(0)], run_check=False).requires_grad_()
    session = open_session(tmp_path, level="mix")
    session.start(model)
    tensor = leaf * 1
    (model(tensor) + tensor * 2).to_local().sum().backward()
    dump = close(session, tmp_path)
    assert dump.records["Tensor.mul.0.backward"]["input"][0]["Max"] == 3
    assert dump.records["Tensor.mul.0.backward"]["input"][0]["placements"] == ["Shard(dim=0)"]


def test_what_a_collective_only_receives_into_is_undefined_until_somebody_has_waited(
    session: Session, tmp_path: Path
) -> None:
    received = torch.full((2,), 7.0)
    work = dist.all_gather_into_tensor(received, torch.ones(2), async_op=True)
    received.view(2, 1)
    work.wait()
    received.view(2, 1)
    records = close(session, tmp_path).records
    gathered = records["Distributed.all_gather_into_tensor.0.forward"]
    assert [leaf.get("note") for leaf in gathered["input_args"]] == ["undefined memory", None]
    assert [leaf.get("note") for leaf in gathered["output"]] == [None, None]
    assert records["Tensor.view.0.forward"]["output"][0]["note"] == "undefined memory"
    assert "note" not in records["Tensor.view.1.forward"]["output"][0]


def test_what_is_sent_from_the_memory_that_is_received_into_stays_data(session: Session, tmp_path: Path) -> None:
    memory = torch.empty(2)
    memory[:1] = 1.0
    dist.all_gather_into_tensor(memory[:1], memory[:1])
    dist.all_reduce(memory[:1])
    dist.broadcast(memory[:1], src=0)
    records = close(session, tmp_path).records
    gathered = records["Distributed.all_gather_into_tensor.0.forward"]
    assert gathered["input_args"][1].get("note") is None
    for name in ("all_gather_into_tensor", "all_reduce", "broadcast"):
        assert records[f"Distributed.{name}.0.forward"]["output"][0].get("note") is None


def test_a_result_that_nobody_was_seen_to_wait_for_is_data(session: Session, tmp_path: Path) -> None:
    received = torch.empty(2)
    dist.all_gather_into_tensor(received, torch.ones(2), async_op=True)
    gc.collect()
    dist.barrier()
    received.view(2, 1)
    assert "note" not in close(session, tmp_path).records["Tensor.view.0.forward"]["output"][0]


def test_what_is_gathered_from_undefined_memory_is_undefined(session: Session, tmp_path: Path) -> None:
    received = torch.ones(2)
    dist.all_gather_into_tensor(received, torch.empty(2))
    gathered = close(session, tmp_path).records["Distributed.all_gather_into_tensor.0.forward"]
    assert gathered["output"][0]["note"] == "undefined memory"


class Summed(torch.autograd.Function):
    """Communicates forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(y := x.clone())
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


def test_a_collective_says_with_whom_it_exchanges_what(session: Session, tmp_path: Path) -> None:
    x, y = torch.ones(2), torch.zeros(2)
    dist.all_reduce(x, dist.ReduceOp.MAX)
    dist.all_gather([y], x)
    dist.broadcast(tensor=y, src=0)
    functional.all_reduce(x, "sum", dist.group.WORLD).add(1)
    records = close(session, tmp_path).records
    told = [fields["collective"] for fields in records.values() if "collective" in fields]
    assert [one["kind"] for one in told] == ["all_reduce", "all_gather", "broadcast", "all_reduce"]
    assert [one["number"] for one in told] == [0, 1, 2, 3]
    assert all(one["group"] == {"name": dist.group.WORLD.group_name, "ranks": [0]} for one in told)
    assert [(one["reads"], one["writes"]) for one in told] == [
        (["input.0"], ["input.0"]),
        (["input.1"], ["input.0"]),
        (["kwargs.tensor"], ["kwargs.tensor"]),
        (["input.0"], []),
    ]
    assert [one.get("op") for one in told] == ["max", None, None, "sum"] and told[2]["root"] == 0


def test_what_the_backward_of_a_function_exchanges_is_recorded_inside_of_it(session: Session, tmp_path: Path) -> None:
    Summed.apply(torch.ones(2, requires_grad=True)).sum().backward()
    dump = close(session, tmp_path)
    inside = {name: fields.get("inside") for name, fields in dump.records.items() if name.startswith("Distributed.")}
    assert inside == {
        "Distributed.all_reduce.0.forward": "Autograd.Summed.0.forward",
        "Distributed.all_reduce.1.forward": "Autograd.Summed.0.backward",
    }
    assert dump.records["Distributed.all_reduce.1.forward"]["output"][0]["Max"] == 1
