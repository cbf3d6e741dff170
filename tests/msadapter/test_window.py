"""A window changes nothing in a program for MSAdapter, and leaves nothing behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import mindspore
import numpy as np
import pytest

from tensorprobe.mindspore import PrecisionDebugger
from tests.msadapter.program import DUMP, Deep, F, dump_of, loss_of, make_net, nn, torch, train_step


def places() -> Iterator[tuple[Any, dict[str, Any]]]:
    """Everything whose attributes a window replaces, with these attributes."""
    names = ("torch", "torch.nn.functional", "torch.distributed", "torch.ops", "torch_npu", __name__)
    real = ("msadapter", "msadapter.nn.functional", "msadapter.distributed", "msadapter.ops", "msadapter._tensor")
    for name in (*names, *real):
        if name in sys.modules:
            yield name, dict(vars(sys.modules[name]))
    for kind in (torch.Tensor, nn.Module, nn.Linear):
        yield kind, dict(vars(kind))


def values_of(model: Any, loss: Any) -> list[np.ndarray[Any, Any]]:
    gradients = [parameter.grad.asnumpy().copy() for parameter in model.parameters()]
    buffers = [buffer.asnumpy().copy() for buffer in model.buffers()]
    return [loss.asnumpy().copy(), *gradients, *buffers]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_nothing_stays_after_stop(level: str) -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level=level)
    model, x = make_net()
    debugger.start(model)  # imports what the program itself has not imported yet
    debugger.stop()
    before, own = dict(places()), [dict(vars(module)) for module in model.modules()]
    debugger.start(model)
    train_step(model, x)
    debugger.stop()
    after = dict(places())
    assert before.keys() == after.keys()
    for place, attributes in before.items():
        assert attributes.keys() == after[place].keys(), place
        changed = [name for name, value in attributes.items() if after[place][name] is not value]
        assert not changed, place
    assert [set(vars(module)) for module in model.modules()] == [set(attributes) for attributes in own]


def test_a_function_that_was_first_asked_for_inside_of_a_window_is_the_original_after_it() -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level="L1")
    debugger.start()
    inside = F.softplus
    debugger.stop()
    assert F.softplus is sys.modules["msadapter.nn.functional"].softplus
    assert F.softplus is not inside


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_no_bit_changes(level: str, task: str) -> None:
    model, x = make_net()
    expected = values_of(model, train_step(model, x))
    debugger = PrecisionDebugger(dump_path=DUMP, level=level, task=task)
    model, x = make_net()
    debugger.start(model)
    loss = train_step(model, x)
    debugger.stop()
    debugger.step()
    for plain, captured in zip(expected, values_of(model, loss), strict=True):
        np.testing.assert_array_equal(plain, captured)


def test_no_bit_of_a_deep_model_changes() -> None:
    def train(debugger: PrecisionDebugger | None) -> list[np.ndarray[Any, Any]]:
        torch.manual_seed(0)
        mindspore.set_seed(0)
        np.random.seed(0)
        model, x = Deep(), mindspore.Tensor(np.arange(6).reshape(3, 2), mindspore.int32)
        if debugger is not None:
            debugger.start(model)
        output, more = model(x)
        loss = output.square().sum() + more["largest"].sum()
        loss.backward()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        return values_of(model, loss)

    expected = train(None)
    captured = train(PrecisionDebugger(dump_path=DUMP, level="mix"))
    for plain, value in zip(expected, captured, strict=True):
        np.testing.assert_array_equal(plain, value)
    coverage = dump_of().read("run.json")["coverage"]
    assert (coverage["failed"], coverage["unseen"]) == (0, {})


def test_an_optimizer_in_the_window_updates_the_same_weights_and_its_calls_are_marked() -> None:
    def train(debugger: PrecisionDebugger | None) -> list[np.ndarray[Any, Any]]:
        model, x = make_net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(2):
            if debugger is not None:
                debugger.start(model)
            train_step(model, x)
            optimizer.step()
            optimizer.zero_grad()
            if debugger is not None:
                debugger.step()
        return [parameter.asnumpy().copy() for parameter in model.parameters()]

    expected = train(None)
    captured = train(PrecisionDebugger(dump_path=DUMP, level="mix"))
    for plain, value in zip(expected, captured, strict=True):
        np.testing.assert_array_equal(plain, value)
    callers = {record.get("caller") for record in dump_of(1).records.values()}
    assert callers == {None, "optimizer"}


def test_random_numbers_are_the_same_with_a_window() -> None:
    def draw() -> list[np.ndarray[Any, Any]]:
        torch.manual_seed(3)
        mindspore.set_seed(3)
        x = torch.ones(4, 4)
        return [torch.randn(3).asnumpy().copy(), F.dropout(x, 0.5).asnumpy().copy(), torch.rand(2).asnumpy().copy()]

    plain = draw()
    debugger = PrecisionDebugger(dump_path=DUMP, level="L1")
    debugger.start()
    captured = draw()
    debugger.stop()
    for expected, value in zip(plain, captured, strict=True):
        np.testing.assert_array_equal(expected, value)


def test_the_backward_after_stop_is_recorded_until_step() -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level="mix", task="tensor")
    model, x = make_net()
    debugger.start(model)
    loss = loss_of(model, x)
    debugger.stop()
    assert "Module.fc.Linear.backward.0" not in dump_of().records
    loss.backward()
    debugger.step()
    dump = dump_of()
    assert {"Module.fc.Linear.backward.0", "Functional.linear.0.backward"} <= set(dump.records)
    weight = dump.array(dump.records["Module.fc.Linear.parameters_grad"]["weight"][0])
    np.testing.assert_array_equal(weight, model.fc.weight.grad.asnumpy())


def test_an_exception_of_the_program_reaches_it_and_the_rest_is_recorded() -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level="L1")
    debugger.start()
    with pytest.raises(TypeError):
        torch.matmul(torch.ones(2, 3), "no tensor")
    torch.add(torch.ones(2), 1.0)
    debugger.stop()
    debugger.step()
    assert "Torch.add.0.forward" in dump_of().records


def test_what_runs_without_gradients_has_no_backward() -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level="mix")
    model, x = make_net()
    debugger.start(model)
    with torch.no_grad():
        model(x)
    debugger.stop()
    debugger.step()
    records = dump_of().records
    assert "Module.fc.Linear.forward.0" in records
    assert not any("backward" in name.split(".") for name in records)
