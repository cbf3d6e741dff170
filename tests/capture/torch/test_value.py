"""A value that has changed is never reported with the statistics it had before; one that has not is reduced once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tensorprobe.capture.session import Session
from tensorprobe.capture.torch import layout
from tensorprobe.capture.torch import value as value_module
from tensorprobe.capture.torch.layout import is_dense, layout_of
from tensorprobe.capture.torch.reader import TorchReader
from tensorprobe.capture.torch.reducer import Reducer
from tensorprobe.capture.torch.verification import VARIABLE
from tensorprobe.model.record import TensorLeaf
from tests.capture.torch.dump import only_step
from tests.capture.torch.training import open_session
from tests.capture.torch.watched import Watched, check
from tests.capture.torch.writes import OPTIMIZERS, PROGRAMS, Program, train_with
from tests.length import count_examples


@pytest.fixture(params=["L0", "L1", "mix"])
def watched(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    watched = Watched(tmp_path, request.param)
    yield watched
    watched.session.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_recorded_is_the_value_at_that_moment(watched: Watched, program: Program) -> None:
    check(watched, program)


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_parameters_after_an_optimizer_step(
    watched: Watched, make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
) -> None:
    check(watched, train_with(make_optimizer))


@pytest.mark.parametrize("hook", [lambda gradient: gradient.mul_(3), lambda gradient: gradient * 3])
def test_gradients_that_a_hook_changes(tmp_path: Path, hook: Callable[[torch.Tensor], torch.Tensor]) -> None:
    session = open_session(tmp_path, level="L1")
    x = torch.full((2, 3), 0.5, requires_grad=True)
    session.start()
    y = x * 2
    y.register_hook(hook)
    torch.exp(y).sum().backward()
    session.close()
    records = only_step(tmp_path).records
    assert x.grad is not None
    assert records["Torch.exp.0.backward"]["output"][0]["Norm"] == pytest.approx(x.grad.norm().item() / 6)
    assert records["Tensor.mul.0.backward"]["input"][0]["Norm"] == pytest.approx(x.grad.norm().item() / 2)


def test_a_single_point_sees_what_was_written_since_the_last(tmp_path: Path) -> None:
    w = nn.Parameter(torch.ones(4, 4))
    optimizer = torch.optim.SGD([w], lr=0.5, fused=True)
    session = open_session(tmp_path, level="debug")
    truth = []
    for _ in range(3):
        session.save(w, "w", save_backward=False)
        truth.append(w.detach().norm().item())
        w.grad = torch.ones(4, 4)
        optimizer.step()
        w.data.mul_(3)
    session.close()
    points = only_step(tmp_path).read("debug.json")["data"]
    assert [points[f"w.{number}.debug"]["Norm"] for number in range(3)] == pytest.approx(truth)


# -- random programs ---------------------------------------------------------------------------------------------------

ACTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "add in place": lambda x: x.add_(1),
    "write a part": lambda x: x[1:].mul_(2),
    "write a column": lambda x: x.t()[0].fill_(5),
    "write data": lambda x: x.data.mul_(1.5),
    "write numpy": lambda x: np.multiply(array := x.detach().numpy(), 0.5, out=array),
    "write storage": lambda x: x.untyped_storage().fill_(0),
    "copy": lambda x: x.copy_(torch.randn(x.shape)),
    "set item": lambda x: x.__setitem__(0, 3.0),
    "set": lambda x: x.set_(torch.randn(x.shape)),
    "exchange data": lambda x: setattr(x, "data", torch.randn(x.shape)),
    "resize": lambda x: x.resize_(3, 4),
    "read only": lambda x: x.sum(),
}
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda x: x,
    "transposed": lambda x: x.t(),
    "flat": lambda x: x.view(12),
    "part": lambda x: x[1:],
    "expanded": lambda x: x[:1].expand(5, 4),
    "bits": lambda x: x.view(torch.int32),
    "detached": lambda x: x.detach(),
    "product": lambda x: x * 2,
}


@settings(max_examples=count_examples(60))
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(0, 2), st.sampled_from(sorted(VIEWS))), max_size=15
    )
)
def test_any_order_of_writes_and_looks(steps: list[tuple[str, int, str]]) -> None:
    torch.manual_seed(0)
    reader = TorchReader(has_stats=True, digest_kind=None)
    seen = Seen(reader)
    tensors = [torch.randn(3, 4), torch.randn(3, 4) * 1, nn.Parameter(torch.randn(3, 4)).detach()]
    seen.look(tensors[1], "Tensor.mul.0.forward")
    for number, (action, index, view) in enumerate(steps):
        seen.look(VIEWS[view](tensors[index]), None)
        if "data" in action or "storage" in action:
            reader.values.expose(tensors[index])  # as the mode does
        ACTIONS[action](tensors[index])
        seen.look(tensors[index], f"Tensor.act.{number}.forward")
        seen.look(VIEWS[view](tensors[index]), f"Tensor.view.{number}.forward")
        seen.look(VIEWS[view](tensors[index]), None)


class Seen:
    """Reads tensors and compares each leaf with the truth."""

    def __init__(self, reader: TorchReader) -> None:
        self.reader = reader

    def look(self, tensor: torch.Tensor, produced_by: str | None) -> TensorLeaf:
        leaf = self.reader.read(tensor, produced_by)
        numbers = tensor.detach().clone().double()
        stats = leaf.value.stats
        assert stats is not None
        assert stats.max == pytest.approx(numbers.max().item())
        assert stats.norm == pytest.approx(numbers.norm().item(), rel=1e-5, abs=1e-30)
        return leaf


# -- sameness is used where it is certain ------------------------------------------------------------------------------


@pytest.fixture
def reduced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """The shapes of all tensors that were reduced. Compiled code is told of no kind that it can read by itself."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(layout, "KINDS", {})
    layout.known_layouts.clear()
    shapes: list[tuple[int, ...]] = []
    original = Reducer.reduce

    def reduce(reducer: Reducer, tensor: torch.Tensor, *rest: Any) -> Any:
        shapes.append(tuple(tensor.shape))
        return original(reducer, tensor, *rest)

    original_line = Reducer.reduce_line

    def reduce_line(reducer: Reducer, tensor: torch.Tensor, *rest: Any) -> Any:
        stats = original_line(reducer, tensor, *rest)
        if stats is not None:
            shapes.append(tuple(tensor.shape))
        return stats

    monkeypatch.setattr(Reducer, "reduce", reduce)
    monkeypatch.setattr(Reducer, "reduce_line", reduce_line)
    yield shapes
    layout.known_layouts.clear()


@pytest.fixture
def session(tmp_path: Path, reduced: list[tuple[int, ...]]) -> Iterator[Session]:
    session = open_session(tmp_path, level="L1")
    session.start()
    yield session
    session.close()


def test_the_output_of_one_call_is_not_reduced_again_as_the_input_of_the_next(
    session: Session, reduced: list[tuple[int, ...]]
) -> None:
    x = torch.zeros(3, 5)
    for _ in range(4):
        x = torch.relu(x)
    assert len(reduced) == 5


def test_a_permuted_view_of_all_of_its_base_is_not_reduced_again(
    session: Session, reduced: list[tuple[int, ...]]
) -> None:
    x = torch.zeros(3, 5, 2)
    for view in (x.transpose(0, 1), x.view(15, 2), x.flatten(), x.permute(2, 0, 1)[None]):
        torch.relu(view)
    assert reduced == [(3, 5, 2), (5, 3, 2), (15, 2), (30,), (1, 2, 3, 5)]  # the last four are results of relu


def test_a_part_of_a_tensor_is_reduced_by_itself(session: Session, reduced: list[tuple[int, ...]]) -> None:
    x = torch.zeros(3, 5)
    torch.relu(x[1:])
    assert reduced == [(3, 5), (2, 5), (2, 5)]


def test_a_parameter_that_is_used_twice_is_reduced_once(session: Session, reduced: list[tuple[int, ...]]) -> None:
    with torch._C.DisableTorchFunction():  # as if it was made before the window
        weight = nn.Parameter(torch.ones(6, 5))
    x = torch.zeros(3, 5)
    F.linear(x, weight)
    F.linear(x, weight)
    F.linear(x, weight.t().t())
    assert reduced.count((6, 5)) == 1


def test_gradients_are_reduced_once(session: Session, reduced: list[tuple[int, ...]]) -> None:
    x = torch.randn(3, 5, requires_grad=True)
    y = torch.exp(torch.exp(torch.exp(x)))
    z = y.sum()
    reduced.clear()
    z.backward()
    assert len(reduced) == 5  # of the sum, of its argument, of each exp's argument


def test_the_output_of_a_module_is_that_of_its_last_call(tmp_path: Path, reduced: list[tuple[int, ...]]) -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.Sequential(nn.ReLU()))
    session = open_session(tmp_path, level="mix")
    session.start(model)
    with torch.no_grad():
        model(torch.zeros(3, 5))
    session.close()
    assert reduced.count((3, 6)) == 2  # of Linear and of ReLU


# -- the table ---------------------------------------------------------------------------------------------------------


def test_the_table_forgets_storages_that_are_gone() -> None:
    reader = TorchReader(has_stats=False, digest_kind=None)
    for number in range(3 * value_module._SWEEP_SIZE):
        reader.read(torch.empty(1, 1), f"Torch.empty.{number}.forward")
    assert len(reader.values) <= value_module._SWEEP_SIZE


def test_the_table_keeps_storages_that_are_there() -> None:
    reader = TorchReader(has_stats=False, digest_kind=None)
    held = [torch.empty(1, 1) for _ in range(value_module._SWEEP_SIZE + 10)]
    for tensor in held:
        reader.read(tensor, "Torch.empty.0.forward")
    known = reader.read(held[0], None)
    assert len(reader.values) == len(held)
    assert known.source == "Torch.empty.0.forward"


def test_many_views_or_writes_of_one_tensor_take_no_more_memory() -> None:
    reader = TorchReader(has_stats=True, digest_kind=None)
    x = torch.zeros(40, 40)
    reader.read(x, "Torch.zeros.0.forward")
    (known,) = reader.values._storages.values()
    for row in range(40):
        for column in range(40):
            reader.read(x[row:, column:], f"Tensor.__getitem__.{40 * row + column}.forward")
    assert len(known.values) <= value_module._MAX_LAYOUTS
    assert len(known.sources) <= value_module._MAX_LAYOUTS
    for _ in range(50):
        reader.read(x.add_(1), "Tensor.add_.0.forward")
    assert len(known.values) == 1


def test_the_table_holds_no_memory_of_the_user() -> None:
    reader = TorchReader(has_stats=True, digest_kind=None)
    x = torch.ones(10)
    storage = torch.multiprocessing.reductions.StorageWeakRef(x.untyped_storage())
    reader.read(x, "Torch.ones.0.forward")
    del x
    assert storage.expired()


@pytest.mark.parametrize(
    ("tensor", "is_all"),
    [
        (torch.zeros(3, 4), True),
        (torch.zeros(3, 4).t(), True),
        (torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last), True),
        (torch.zeros(3, 1, 4).transpose(0, 1), True),
        (torch.zeros(3, 4)[:, :2], False),
        (torch.zeros(3, 4)[1:], False),
        (torch.zeros(3, 1).expand(3, 4), False),
        (torch.zeros(12).as_strided((3, 4), (1, 1)), False),
    ],
)
def test_what_is_all_of_a_storage(tensor: torch.Tensor, is_all: bool) -> None:
    assert (layout_of(tensor, 0).dense_bytes == tensor.untyped_storage().nbytes()) == is_all


@given(st.permutations(range(4)))
def test_every_permutation_is_dense_and_a_slice_inside_it_is_not(order: list[int]) -> None:
    tensor = torch.zeros(2, 3, 4, 5).permute(order)
    assert is_dense(tensor)
    assert not is_dense(tensor.narrow(order.index(3), 0, 4))
