"""What a mode does not see by itself is recorded at its boundary, or counted as unseen; afterwards everything is as
it was."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch import relu as early_relu

from tensorprobe.errors import UsageError
from tests.capture.torch.dump import DumpOnDisk, only_step
from tests.capture.torch.training import open_session


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


early_double = Double.apply


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2


def record(tmp_path: Path, run: Callable[[], Any], level: str = "L1", model: Any = None) -> tuple[DumpOnDisk, Any]:
    session = open_session(tmp_path, level=level, task="tensor")
    session.start(model)
    run()
    session.stop()
    coverage = session.recorder.coverage
    assert coverage.failed == 0
    session.close()
    return only_step(tmp_path), coverage


@pytest.fixture
def leaf() -> torch.Tensor:
    return torch.randn(4, requires_grad=True)


def test_names_that_were_imported_early_are_seen(tmp_path: Path, leaf: torch.Tensor) -> None:
    dump, _ = record(tmp_path, lambda: early_relu(leaf))
    assert list(dump.records) == ["Torch.relu.0.forward"]


def test_operators_and_indexing_are_calls(tmp_path: Path, leaf: torch.Tensor) -> None:
    dump, _ = record(tmp_path, lambda: (leaf + 1, 1 - leaf, leaf[0], leaf @ leaf, -leaf))
    assert list(dump.records) == [
        "Tensor.add.0.forward",
        "Tensor.__rsub__.0.forward",
        "Tensor.__getitem__.0.forward",
        "Tensor.matmul.0.forward",
        "Tensor.neg.0.forward",
    ]


def test_what_computes_nothing_is_counted_and_left_out(tmp_path: Path, leaf: torch.Tensor) -> None:
    dump, coverage = record(tmp_path, lambda: (leaf.size(), leaf.dim(), leaf.shape, leaf.is_cuda, len(leaf)))
    assert not dump.records
    assert coverage.excluded == 5


def test_only_the_outermost_call_is_a_record(tmp_path: Path, leaf: torch.Tensor) -> None:
    dump, _ = record(tmp_path, lambda: F.cross_entropy(leaf[None], torch.tensor([1])))
    assert "Functional.cross_entropy.0.forward" in dump.records
    assert not [name for name in dump.records if "nll_loss" in name or "softmax" in name]


def test_operators_of_torch_ops_are_seen(tmp_path: Path, leaf: torch.Tensor) -> None:
    dump, _ = record(tmp_path, lambda: torch.ops.aten.mul(leaf, 2))
    assert list(dump.records) == ["Ops.aten.mul.0.forward"]


def test_memory_that_is_undefined_says_so(tmp_path: Path) -> None:
    dump, _ = record(tmp_path, lambda: torch.empty(3))
    assert dump.records["Torch.empty.0.forward"]["note"] == "undefined memory"


@pytest.mark.parametrize("apply", [early_double, lambda x: Double.apply(x)], ids=["bound early", "called late"])
def test_a_custom_function_is_recorded_with_its_gradients(
    tmp_path: Path, leaf: torch.Tensor, apply: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    dump, _ = record(tmp_path, lambda: apply(leaf).sum().backward())
    assert "Autograd.Double.0.forward" in dump.records
    backward = dump.records["Autograd.Double.0.backward"]
    assert torch.equal(dump.tensor(backward["input"][0]), torch.ones(4))
    assert torch.equal(dump.tensor(backward["output"][0]), torch.full((4,), 2.0))


def test_a_scripted_function_is_one_record(tmp_path: Path, leaf: torch.Tensor) -> None:
    dump, coverage = record(tmp_path, lambda: scripted(leaf).sum().backward())
    fields = dump.records["Jit.scripted.0.forward"]
    assert torch.equal(dump.tensor(fields["output"][0]), torch.sin(leaf.detach()) * 2)
    assert torch.allclose(dump.tensor(dump.records["Jit.scripted.0.backward"]["output"][0]), leaf.grad)
    assert coverage.unseen == {"scripted region": 1}


def test_a_scripted_module_is_recorded_at_its_boundary(tmp_path: Path) -> None:
    model = nn.Sequential(torch.jit.script(nn.Linear(4, 2)), nn.ReLU())
    dump, coverage = record(tmp_path, lambda: model(torch.randn(3, 4)).sum().backward(), "mix", model)
    assert dump.parents["Jit.Linear.0.forward"] == "Module.0.RecursiveScriptModule.forward.0"
    assert coverage.unseen == {"scripted region": 1}


@pytest.fixture
def compiled() -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    torch._dynamo.reset()

    def work(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 2 + torch.cos(x)

    yield torch.compile(work, backend="aot_eager")
    torch._dynamo.reset()


def test_a_compiled_function_is_one_record_with_its_gradients(
    tmp_path: Path, leaf: torch.Tensor, compiled: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    dump, coverage = record(tmp_path, lambda: compiled(leaf).sum().backward())
    fields = dump.records["Jit.work.0.forward"]
    assert torch.allclose(dump.tensor(fields["output"][0]), torch.sin(leaf.detach()) * 2 + torch.cos(leaf.detach()))
    assert torch.allclose(dump.tensor(dump.records["Jit.work.0.backward"]["output"][0]), leaf.grad)
    assert [name for name in dump.records if name.startswith("Torch.")] == []
    assert coverage.unseen == {"compiled region": 1}


def test_capture_causes_no_recompilation_and_no_graph_break(
    tmp_path: Path, leaf: torch.Tensor, compiled: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    compiled(leaf)
    before = frames_compiled()
    record(tmp_path, lambda: compiled(leaf))
    compiled(leaf)
    assert frames_compiled() == before
    assert not torch._dynamo.utils.counters["graph_break"]


def frames_compiled() -> int:
    return int(torch._dynamo.utils.counters["frames"]["total"])


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_compiled_module_is_recorded_under_the_name_of_what_it_compiles(tmp_path: Path, level: str) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    compiled_model = torch.compile(model, backend="aot_eager")
    x = torch.randn(3, 4)
    expected = model(x)
    dump, coverage = record(tmp_path, lambda: compiled_model(x).sum().backward(), level, compiled_model)
    names = [name for name in dump.records if "forward" in name]
    if level != "L1":
        assert "Module.Sequential.forward.0" in names
        output = dump.tensor(dump.records["Module.Sequential.forward.0"]["output"][0])
        assert torch.allclose(output, expected)
    if level != "L0":
        assert "Jit.Sequential.0.forward" in names
    assert not [name for name in names if "Linear" in name]
    assert coverage.unseen == {"compiled region": 1}
    assert not torch._dynamo.utils.counters["graph_break"]
    torch._dynamo.reset()


def test_a_function_that_is_compiled_inside_the_window_is_noticed(tmp_path: Path, leaf: torch.Tensor) -> None:
    torch._dynamo.reset()

    def run() -> None:
        torch.compile(lambda x: x * 3, backend="aot_eager")(leaf)

    _, coverage = record(tmp_path, run)
    assert coverage.unseen == {"compiled region": 1}
    torch._dynamo.reset()


def test_an_exception_in_a_compiled_function_leaves_capture_working(tmp_path: Path, leaf: torch.Tensor) -> None:
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager")
    def fails(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(3, 3)

    def run() -> None:
        with pytest.raises(Exception, match=r"."):
            fails(leaf)
        torch.sin(leaf)

    dump, _ = record(tmp_path, run)
    assert "Torch.sin.0.forward" in dump.records
    torch._dynamo.reset()


def test_calls_of_the_optimizer_and_of_clipping_are_tagged(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> None:
        model(torch.randn(2, 3)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    dump, _ = record(tmp_path, run)
    callers = {fields.get("caller") for fields in dump.records.values()}
    assert callers == {None, "optimizer", "clipping"}
    assert "caller" not in dump.records["Functional.linear.0.forward"]


def test_an_exception_in_a_call_is_recorded_and_nothing_after_it_is_lost(tmp_path: Path, leaf: torch.Tensor) -> None:
    model = nn.Sequential(nn.Linear(4, 2))

    def run() -> None:
        with pytest.raises(RuntimeError):
            model(torch.randn(3, 5))
        model(torch.randn(3, 4))
        torch.sin(leaf)

    dump, _ = record(tmp_path, run, "mix", model)
    assert dump.records["Functional.linear.0.forward"]["failed"].startswith("RuntimeError: ")
    assert dump.records["Module.0.Linear.forward.0"]["failed"].startswith("RuntimeError: ")
    assert dump.parents["Functional.linear.1.forward"] == "Module.0.Linear.forward.1"
    assert dump.parents["Torch.sin.0.forward"] is None


def test_arguments_reach_the_call_as_the_same_objects(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Keeps(nn.Module):
        def forward(self, x: Any, *, extra: Any) -> Any:
            seen.extend([x, extra])
            return x

    model, x, extra = Keeps(), torch.randn(2), {"a": torch.randn(1)}
    record(tmp_path, lambda: model(x, extra=extra), "mix", model)
    assert seen[0] is x and seen[1] is extra


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_modules_are_recorded_after_a_compiled_one(tmp_path: Path, level: str) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0] = torch.compile(model[0], backend="eager")
    x = torch.randn(2, 4)
    dump, _ = record(tmp_path, lambda: [model(x).sum().backward() for _ in range(2)], level, model)
    for index in (0, 1):
        assert dump.parents[f"Module.1.Linear.forward.{index}"] == f"Module.Sequential.forward.{index}"
        assert "weight" in dump.records[f"Module.0.Linear.forward.{index}"]["parameters"]
    torch._dynamo.reset()


def test_a_compiled_function_that_raises_is_recorded_as_failed(tmp_path: Path, leaf: torch.Tensor) -> None:
    torch._dynamo.reset()

    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    def run() -> None:
        with pytest.raises(ValueError, match="no"):
            torch.compile(fails, backend="eager")(leaf)

    dump, _ = record(tmp_path, run)
    assert "failed" in dump.records["Jit.fails.0.forward"]
    torch._dynamo.reset()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_tracing_inside_a_window_works_and_is_counted(tmp_path: Path, level: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    _, coverage = record(tmp_path, lambda: torch.jit.trace(model, torch.randn(3, 4)), level, model)
    assert coverage.unseen


def test_an_assignment_has_the_changed_tensor_as_its_output(tmp_path: Path) -> None:
    def run() -> None:
        x = torch.zeros(4)
        x[1] = 5.0
        torch.neg(x)

    dump, _ = record(tmp_path, run)
    assert dump.records["Tensor.__setitem__.0.forward"]["output"][0]["Max"] == 5.0
    assert dump.records["Torch.neg.0.forward"]["input_args"][0]["source"] == "Tensor.__setitem__.0.forward"


def test_running_statistics_that_lie_inside_a_matrix_are_read_again(tmp_path: Path) -> None:
    def run() -> None:
        stats = torch.zeros(2, 3)
        stats * 1
        F.batch_norm(torch.randn(8, 3) + 5, stats[0], stats[1], training=True, momentum=1.0)
        stats * 1

    dump, _ = record(tmp_path, run)
    assert dump.records["Tensor.mul.1.forward"]["input_args"][0]["Max"] > 3


def test_a_window_closed_by_another_thread_records_nothing_more(tmp_path: Path) -> None:
    session = open_session(tmp_path, level="L1")
    session.start()
    worker = threading.Thread(target=session.stop)
    worker.start()
    worker.join()
    torch.sin(torch.ones(2))
    session.close()
    assert not only_step(tmp_path).records
    assert torch._C._len_torch_function_stack() == 0  # another thread cannot take the mode away: the next call does


def test_a_second_window_at_the_same_time_is_refused(tmp_path: Path) -> None:
    first, second = open_session(tmp_path / "a", level="L1"), open_session(tmp_path / "b", level="L1")
    first.start()
    with pytest.raises(UsageError, match="stop it before this one starts"):
        second.start()
    first.close()
    second.start()
    second.close()


def test_the_model_is_not_kept_alive(tmp_path: Path) -> None:
    model = nn.Linear(9, 9)
    weight = weakref.ref(model.weight)
    session = open_session(tmp_path, level="mix")
    session.start(model)
    model(torch.ones(1, 9)).sum().backward()
    session.stop()
    session.step()
    del model
    gc.collect()
    assert weight() is None
    session.close()


def test_a_module_name_in_the_list_takes_the_calls_inside_it_at_level_l1_too(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    session = open_session(tmp_path, level="L1", list=["Module.1."])
    session.start(model)
    model(torch.ones(1, 4))
    session.stop()
    assert session.recorder.coverage.filtered == 2  # the other linear, and torch.ones
    session.close()
    assert list(only_step(tmp_path).records) == ["Functional.linear.1.forward"]


def test_a_long_list_of_numbers_is_one_short_leaf(tmp_path: Path) -> None:
    dump, _ = record(tmp_path, lambda: torch.tensor([0.5] * 5000))
    argument = dump.records["Torch.tensor.0.forward"]["input_args"][0]
    assert argument == {"type": "list", "length": 5000, "value": [0.5] * 8}


def test_what_a_function_returns_is_known_though_it_is_in_no_variable() -> None:
    from tensorprobe.capture.torch.compiled import when_returned

    received: list[Any] = []

    def run() -> str:
        try:
            return "the result"
        finally:
            when_returned(sys._getframe(), received.append)

    assert run() == "the result" and received == ["the result"] and sys.getprofile() is None
