"""What is undefined on the way in is undefined on the way out, until something defined is written into it.

Undefined memory holds NaN here, and the program would be stopped at the first NaN that counts.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed._composable.fsdp  # has operators
import torch.utils.checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorprobe.capture.session import Session
from tensorprobe.capture.torch import undefined_memory
from tensorprobe.errors import NonFiniteError
from tests.capture.torch.dump import DumpOnDisk, only_step
from tests.capture.torch.poison import poisoned
from tests.capture.torch.training import open_session
from tests.length import count_examples

ONES = torch.ones(4)


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    with poisoned():
        yield


def record(tmp_path: Path, run: Callable[[], Any], **options: Any) -> DumpOnDisk:
    session = open_session(tmp_path, **{"level": "L1", "on_nonfinite": "stop", **options})
    session.start()
    try:
        run()
        session.stop()
        assert session.recorder.coverage.failed == 0
    finally:
        session.close()
    return only_step(tmp_path)


def is_undefined(leaf: Any) -> bool:
    return "undefined memory" in (leaf.get("note") or "")


def results(dump: DumpOnDisk, stem: str = "Tensor.add") -> list[bool]:
    """Of each call of this name, in order: is what came out undefined?"""
    records = [fields for name, fields in dump.records.items() if name.startswith(f"{stem}.") and "forward" in name]
    return [any(is_undefined(leaf) for leaf in fields["output"]) for fields in records]


MAKERS: dict[str, Callable[[], torch.Tensor]] = {
    "empty": lambda: torch.empty(4),
    "empty_like": lambda: torch.empty_like(ONES),
    "empty_strided": lambda: torch.empty_strided((2, 2), (1, 2)),
    "empty_permuted": lambda: torch.empty_permuted((2, 2), (1, 0)),
    "new_empty": lambda: ONES.new_empty(4),
    "new_empty_strided": lambda: ONES.new_empty_strided((4,), (1,)),
    "resize_": lambda: torch.ones(0).resize_(4),
    "resize_as_": lambda: torch.ones(0).resize_as_(ONES),
    "an operator of torch.ops": lambda: torch.ops.aten.empty.memory_format([4]),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_is_computed_from_undefined_memory_is_undefined(tmp_path: Path, make: Callable[[], torch.Tensor]) -> None:
    dump = record(tmp_path, lambda: (make().sum() + 1).exp())
    assert results(dump) == [True]
    assert results(dump, "Tensor.exp") == [True]


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda x: x.view(2, 2),
    "part": lambda x: x[1:],
    "element": lambda x: x[2],
    "transposed": lambda x: x.view(2, 2).t(),
    "expanded": lambda x: x.expand(3, 4),
    "detached": lambda x: x.detach(),
    "another dtype": lambda x: x.view(torch.int32).view(torch.float32),
    "split": lambda x: torch.split(x, 2)[1],
    "data": lambda x: x.data,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_every_view_of_undefined_memory_is_undefined_and_defined_with_it(
    tmp_path: Path, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    def run() -> None:
        memory = torch.empty(4)
        shown = view(memory)
        shown + 1
        memory.fill_(1.0)
        shown + 1

    assert results(record(tmp_path, run)) == [True, False]


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "out": lambda x: torch.mul(ONES, 2, out=x),
    "copy_": lambda x: x.copy_(ONES),
    "fill_": lambda x: x.fill_(1.0),
    "zero_": lambda x: x.zero_(),
    "normal_": lambda x: x.normal_(),
    "init": lambda x: torch.nn.init.uniform_(x),
    "assignment": lambda x: x.__setitem__(slice(None), ONES),
    "two parts": lambda x: (x.__setitem__(slice(2), 1.0), x[2:].copy_(ONES[2:])),
    "every second": lambda x: (x[::2].fill_(1), x[1::2].fill_(2)),
    "columns": lambda x: (x.view(2, 2).t()[0].fill_(1), x.view(2, 2).t()[1].fill_(1)),
    "indices": lambda x: x.__setitem__(torch.tensor([3, 1, 0, 2]), ONES),
    "masks": lambda x: (x.__setitem__(ONES > 2, 1.0), x.masked_fill_(ONES <= 2, 2.0)),
    "index_copy_": lambda x: x.index_copy_(0, torch.arange(4), ONES),
    "scatter_": lambda x: x.scatter_(0, torch.arange(4), ONES),
    "data": lambda x: x.data.copy_(ONES),
    "foreach": lambda x: torch._foreach_copy_([x], [ONES]),
    "a view": lambda x: x.view(2, 2).t().copy_(torch.ones(2, 2)),
    "an operator that says so": lambda x: torch.ops.fsdp.split_with_sizes_copy(ONES, [4], out=[x]),
    "a product that ignores it": lambda x: x.view(2, 2).addmm_(ONES.view(2, 2), ONES.view(2, 2), beta=0),
    "numpy": lambda x: x.numpy().fill(1.0),
    "a storage that grows and is filled": lambda x: (x.untyped_storage().resize_(0), grow(x), x.copy_(ONES)),
}


def grow(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(16)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_memory_that_was_written_to_is_data(tmp_path: Path, write: Callable[[torch.Tensor], Any]) -> None:
    def run() -> None:
        memory = torch.empty(4)
        write(memory)
        memory + 1

    assert results(record(tmp_path, run)) == [False]


@pytest.mark.parametrize("weight, is_undefined", [(0, False), (1, True)])
def test_a_product_depends_on_memory_that_it_adds_but_not_on_memory_that_it_ignores(
    tmp_path: Path, weight: int, is_undefined: bool
) -> None:
    a = torch.ones(1, 2, 2)

    def run() -> None:
        torch.baddbmm(torch.empty(1, 2, 2), a, a, beta=weight) + 1
        torch.baddbmm(input=torch.empty(1, 2, 2), batch1=a, batch2=a, beta=weight) + 1
        torch.baddbmm(torch.empty(1, 2, 2), a, a, beta=weight, out=torch.zeros(1, 2, 2)) + 1
        torch.ops.aten.baddbmm(torch.empty(1, 2, 2), a, a, beta=weight) + 1
        torch.baddbmm(a, torch.empty(1, 2, 2), a, beta=weight) + 1

    assert results(record(tmp_path, run)) == [*[is_undefined] * 4, True]


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_nan_that_was_written_is_found(tmp_path: Path, write: Callable[[torch.Tensor], Any]) -> None:
    def run() -> None:
        memory = torch.empty(4)
        write(memory)
        memory.sub_(memory).div_(memory)  # 0 / 0
        memory + 1

    with pytest.raises(NonFiniteError, match=r"NaN came out of Tensor\.div_\.0\.forward \(output\.0: 4\)"):
        record(tmp_path, run)


KEEPERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "nothing": lambda x: None,
    "a part": lambda x: x[:3].fill_(1.0),
    "some indices": lambda x: x.__setitem__(torch.tensor([0, 0, 1]), 1.0),
    "a change of itself": lambda x: x.add_(1).mul_(2),
    "itself": lambda x: torch.mul(x, 1, out=x),
    "other undefined memory": lambda x: x.copy_(torch.empty(4)),
    "a part of it, undefined": lambda x: (x.fill_(1), x[:1].copy_(torch.empty(1))),
    "indices, undefined": lambda x: (x.fill_(1), x.index_copy_(0, torch.tensor([2]), torch.empty(1))),
    "nothing, but looked at": lambda x: (x.untyped_storage().data_ptr(), x.size(), x.requires_grad_(False)),
    "a storage that grows": lambda x: (x.fill_(1), x.untyped_storage().resize_(8), grow(x)),
}


@pytest.mark.parametrize("write", KEEPERS.values(), ids=KEEPERS)
def test_memory_stays_undefined_until_all_of_it_is_defined(
    tmp_path: Path, write: Callable[[torch.Tensor], Any]
) -> None:
    def run() -> None:
        memory = torch.empty(4)
        write(memory)
        torch.sum(memory)

    assert results(record(tmp_path, run), "Torch.sum") == [True]


def test_the_part_that_was_written_is_data_while_the_rest_is_not(tmp_path: Path) -> None:
    def run() -> None:
        memory = torch.empty(4, 2)
        memory[:2] = 1.0
        memory[:2] + 1
        memory[torch.tensor([1, 0])] + 1
        memory[2:] + 1
        memory.clone()[1] + 1
        torch.cat([ONES, memory[3]])[:4] + 1

    assert results(record(tmp_path, run)) == [False, False, True, False, False]


def test_only_the_part_by_which_a_tensor_grew_is_undefined(tmp_path: Path) -> None:
    def run() -> None:
        tensor = torch.ones(2).resize_(4)
        tensor[:2] + 1
        tensor[2:] + 1
        tensor.resize_(2) + 1

    dump = record(tmp_path, run)
    assert results(dump) == [False, True, False]
    assert results(dump, "Tensor.resize_") == [True, False]


@pytest.mark.parametrize(
    "make",
    [torch.zeros_like, lambda x: x.new_ones(4), lambda x: torch.full_like(x, 2.0), lambda x: ONES.view_as(x)],
)
def test_what_only_has_the_shape_of_undefined_memory_is_data(
    tmp_path: Path, make: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    assert results(record(tmp_path, lambda: make(torch.empty(4)) + 1)) == [False]


def test_a_write_that_nothing_shows_is_noticed_when_the_memory_is_read(tmp_path: Path) -> None:
    content = torch.full((3000,), 2.0)

    def run() -> None:
        memory = torch.empty(3000)
        ctypes.memmove(memory.untyped_storage().data_ptr(), content.untyped_storage().data_ptr(), 12000)
        memory + 1

    dump = record(tmp_path, run)
    assert dump.records["Tensor.add.0.forward"]["input_args"][0]["Max"] == 2
    assert results(dump) == [False]


def test_an_operator_that_writes_without_saying_so_has_written(tmp_path: Path) -> None:
    library = torch.library.Library("tensorprobe_undefined", "FRAGMENT")
    library.define("fill(Tensor target) -> ()")
    library.define("double(Tensor x) -> Tensor")
    library.impl("fill", lambda target: [target.fill_(1.0)].clear(), "CPU")
    library.impl("double", lambda x: x * 2, "CPU")

    def run() -> None:
        memory = torch.empty(4)
        torch.ops.tensorprobe_undefined.double(memory)
        torch.ops.tensorprobe_undefined.fill(memory)
        memory + 1

    dump = record(tmp_path, run)
    assert results(dump, "Ops.tensorprobe_undefined.double") == [True]
    assert results(dump) == [False]


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        result = torch.empty_like(x)
        torch.mul(x, 2, out=result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_functions_and_scripts_pass_undefined_memory_on(tmp_path: Path) -> None:
    scripted = torch.jit.script(double)

    def run() -> None:
        Scale.apply(torch.empty(4))
        Scale.apply(ONES)
        scripted(torch.empty(4))
        scripted(ONES)

    dump = record(tmp_path, run)
    assert results(dump, "Autograd.Scale") == [True, False]
    assert results(dump, "Jit.double") == [True, False]


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_compiled_regions_pass_undefined_memory_on_and_may_fill_any(tmp_path: Path) -> None:
    compiled = torch.compile(double, backend="eager")
    memory: list[torch.Tensor] = []

    @torch.compile(backend="eager")
    def fill() -> None:
        memory[0].fill_(1.0)

    def run() -> None:
        compiled(torch.empty(4))
        compiled(ONES)
        memory.append(torch.empty(4))
        fill()
        memory[0] + 1

    dump = record(tmp_path, run)
    assert results(dump, "Jit.double") == [True, False]
    assert results(dump) == [False]


def test_a_recomputation_that_finds_other_garbage_has_repeated_its_forward(tmp_path: Path) -> None:
    garbage = iter([torch.zeros(4).untyped_storage(), torch.ones(4).untyped_storage()])

    def work(x: torch.Tensor) -> torch.Tensor:
        memory = torch.empty(4)
        memory.untyped_storage().copy_(next(garbage))  # what happens to be there
        return x * memory.view(2, 2).view(4).zero_().add(2)

    def run() -> None:
        x = torch.ones(4, requires_grad=True)
        torch.utils.checkpoint.checkpoint(work, x, use_reentrant=False).sum().backward()

    records = record(tmp_path, run).records
    repeated = {name: fields for name, fields in records.items() if fields.get("recomputed")}
    assert "Tensor.view.0.recompute" in repeated
    assert not any(fields["differs_from_forward"] for fields in repeated.values())


def test_more_elements_than_can_be_told_apart_are_taken_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undefined_memory, "_MAX_FLAGS", 3)

    def run() -> None:
        memory = torch.empty(4)
        memory[torch.tensor([0, 1])] = 1.0
        memory.view(2, 2)

    dump = record(tmp_path, run, on_nonfinite=None)
    assert results(dump, "Tensor.view") == [False]


def test_what_is_gone_is_not_kept(tmp_path: Path) -> None:
    session = open_session(tmp_path, level="L1")
    session.start()
    for _ in range(600):
        torch.empty(1)
    assert len(session.recorder.reader.undefined) < 300  # type: ignore[attr-defined]
    session.close()


def test_the_gradients_of_what_was_computed_from_undefined_memory_do_not_count(tmp_path: Path) -> None:
    weight = torch.ones(4, requires_grad=True)
    dump = record(tmp_path, lambda: (torch.empty(4) * weight).exp().sum().backward())
    backward = {name: fields for name, fields in dump.records.items() if name.endswith("backward")}
    assert len(backward) == 3
    assert all(is_undefined(leaf) for fields in backward.values() for leaf in fields["output"] if leaf)


def test_what_waits_in_a_call_that_only_writes_does_not_count_as_its_input(tmp_path: Path) -> None:
    def run() -> None:
        memory = torch.empty(4).fill_(math.inf)
        torch.exp(ONES * 1000, out=torch.empty(4).copy_(ONES))
        memory + 1

    with pytest.raises(NonFiniteError, match=r"Inf came out of Torch\.exp"):
        record(tmp_path, run)


def test_symmetric_memory_is_undefined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No CPU has any: what allocates it is replaced, and what torch and capture do around it is real."""
    from torch.distributed._symmetric_memory import empty

    def allocate(size: Any, stride: Any, dtype: Any, device: Any) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            return torch.empty_strided(size, stride, dtype=dtype, device=device)

    owner = torch._C._distributed_c10d._SymmetricMemory
    monkeypatch.setattr(owner, "empty_strided_p2p", staticmethod(allocate))
    dump = record(tmp_path, lambda: empty(4, device="cpu").copy_(ONES) + empty(4, device="cpu"))
    assert dump.records["Distributed.symmetric_memory.empty.0.forward"]["note"] == "undefined memory"
    assert results(dump, "Tensor.copy_") == [False]
    assert results(dump) == [True]


def test_nothing_is_left_after_the_window(tmp_path: Path) -> None:
    before = dict(vars(torch.UntypedStorage)), dict(vars(torch._C._distributed_c10d._SymmetricMemory))
    session = open_session(tmp_path, level="mix")
    session.start(torch.nn.Linear(1, 1))
    torch.empty(4)
    assert (dict(vars(torch.UntypedStorage)), dict(vars(torch._C._distributed_c10d._SymmetricMemory))) != before
    session.close()
    assert (dict(vars(torch.UntypedStorage)), dict(vars(torch._C._distributed_c10d._SymmetricMemory))) == before


def test_memory_that_lived_through_the_end_of_a_window_is_data(tmp_path: Path) -> None:
    session = open_session(tmp_path, level="L1")
    session.start()
    memory = torch.empty(4)
    session.stop()
    memory.fill_(1.0)  # unseen
    session.start()
    memory + 1
    session.stop()
    session.close()
    assert results(only_step(tmp_path)) == [False]


@pytest.mark.parametrize(
    "options", [{"list": ["add"]}, {"api_yaml": "tensor: {remove: [copy_]}"}], ids=["list", "yaml"]
)
def test_calls_that_are_left_out_define_memory_too(tmp_path: Path, options: dict[str, Any]) -> None:
    if "api_yaml" in options:
        (tmp_path / "apis.yaml").write_text(options["api_yaml"])
        options = {"api_yaml": tmp_path / "apis.yaml"}

    def run() -> None:
        memory = torch.empty(4)
        memory + 1
        memory.copy_(ONES)
        memory + 1

    dump = record(tmp_path / "dump", run, **options)
    assert not any("copy_" in name for name in dump.records)
    assert results(dump) == [True, False]


# -- any program -----------------------------------------------------------------------------------------------------

Step = tuple[str, int, int, int, int]
STEPS = st.tuples(
    st.sampled_from(
        ["empty", "slice", "turn", "flat", "fill", "copy", "index", "take", "clone", "add", "change", "out"]
    ),
    *[st.integers(0, 5)] * 4,
)


class Model:
    """Tensors, and beside each an array of the same shape and the same sharing: which elements are undefined?"""

    def __init__(self) -> None:
        self.pairs: list[tuple[torch.Tensor, np.ndarray[Any, Any]]] = []
        self.bases: list[int] = []
        self.run(("empty", 0, 0, 0, 0))

    def add(self, tensor: torch.Tensor, flags: np.ndarray[Any, Any], is_base: bool = True) -> None:
        self.bases += [len(self.pairs)] if is_base else []
        self.pairs.append((tensor, flags))

    def run(self, step: Step) -> None:
        kind, first, second, start, length = step
        if kind == "empty":
            self.add(torch.empty(3, 4), np.ones((3, 4), bool))
            return
        x, flags = self.pairs[first % len(self.pairs)]
        y, others = self.pairs[second % len(self.pairs)]
        part = slice(start, start + length)
        index = [start % len(x), length % len(x)] if x.dim() and len(x) else []
        if kind == "slice" and x.dim():
            self.add(x[part], flags[part], is_base=False)
        elif kind == "turn" and x.dim() == 2:
            self.add(x.t(), flags.T, is_base=False)
        elif kind == "flat" and x.is_contiguous():
            self.add(x.view(-1), flags.reshape(-1), is_base=False)
        elif kind == "fill" and x.dim():
            x[part], flags[part] = 1.0, False
        elif kind == "copy" and x.shape == y.shape:
            x.copy_(y.clone())
            flags[...] = others.copy()
        elif kind == "index" and index:
            x[torch.tensor(index)], flags[index] = 2.0, False
        elif kind == "take" and index:
            self.add(x[torch.tensor(index)], flags[index])
        elif kind == "clone":
            self.add(x.clone(), flags.copy())
        elif kind == "add" and x.shape == y.shape:
            self.add(x + y, np.full(x.shape, flags.any() or others.any()))
        elif kind == "change":
            x.mul_(0.5)
        elif kind == "out" and x.shape == y.shape:
            is_undefined = bool(others.any())
            torch.mul(y, 1, out=x)
            flags[...] = is_undefined

    def check(self, session: Session) -> None:
        for tensor, flags in self.pairs:
            leaf = session.recorder.reader.read(tensor, None)
            assert ("undefined memory" in (leaf.note or "")) == bool(flags.any())

    def define(self) -> None:
        for place in self.bases:
            tensor, flags = self.pairs[place]
            tensor.copy_(torch.zeros(tensor.shape))
            flags[...] = False


def test_any_program_is_undefined_where_it_depends_on_memory_that_nobody_wrote(tmp_path: Path) -> None:
    session = open_session(tmp_path, level="L1", on_nonfinite="stop")

    @settings(max_examples=count_examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(STEPS, min_size=1, max_size=14))
    def check(steps: list[Step]) -> None:
        model = Model()
        for step in steps:
            model.run(step)
            model.check(session)
        model.define()
        model.check(session)

    session.start()
    try:
        check()
        assert session.recorder.coverage.failed == 0
    finally:
        session.close()
