"""The window: what runs between start and stop is recorded, and the backward of it until step. Nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore
import pytest
from mindspore import Tensor, ops

from tensorprobe.mindspore import PrecisionDebugger
from tests.mindspore.program import DUMP, dump_of, files_in, gradient_of, make_net, tensor, train_step

X = [1.0, 1.0]


def start(**options: Any) -> PrecisionDebugger:
    return PrecisionDebugger(dump_path=DUMP, **options)


def test_nothing_before_start_or_after_stop_is_recorded() -> None:
    debugger = start()
    x = ops.ones(2).sin()
    debugger.start()
    x.cos()
    debugger.stop()
    x.tan()
    debugger.step()
    assert list(dump_of().records) == ["Tensor.cos.0.forward"]


def test_stop_after_backward_records_forward_and_backward() -> None:
    debugger = start()
    debugger.start()
    gradient_of(lambda x: x.sin().sum(), tensor(X))
    debugger.stop()
    assert list(dump_of().records) == [
        "Tensor.sin.0.forward",
        "Tensor.sum.0.forward",
        "Tensor.sum.0.backward",
        "Tensor.sin.0.backward",
    ]


def test_stop_before_backward_and_step_after_it_records_both_and_the_files_are_complete_each_time() -> None:
    debugger = start(level="mix")
    model, x = make_net()
    seen: list[Any] = []

    def compute(image: Tensor) -> Tensor:
        debugger.start(model)
        loss = model(image).sum()
        debugger.stop()
        seen.extend((dump_of(), dump_of().parents))
        return loss

    mindspore.grad(compute, None, model.trainable_params())(x)
    after_stop, parents = seen
    after_backward = dump_of()
    debugger.step()
    after_step = dump_of()
    assert "Cell.fc.Dense.forward.0" in after_stop.records
    assert not any("backward" in name for name in after_stop.records)
    assert {"Cell.fc.Dense.backward.0", "Cell.fc.Dense.parameters_grad"} <= after_backward.records.keys()
    assert after_step.records == after_backward.records
    assert parents.keys() == after_stop.records.keys()
    assert dump_of().parents.keys() == after_step.records.keys()
    assert not [name for name in files_in(DUMP / "step0" / "rank") if name.endswith(".part")]


def test_the_files_are_complete_after_stop() -> None:
    debugger = start(level="mix")
    model, x = make_net()
    debugger.start(model)
    train_step(model, x)
    debugger.stop()
    present = files_in(DUMP / "step0" / "rank")
    assert {"dump.json", "construct.json", "stack.json", "run.json"} <= set(present)
    assert "dump.json.part" not in present and "construct.json.part" not in present
    assert len(dump_of().read("stack.json")) > 1


def test_a_backward_after_step_is_not_recorded() -> None:
    debugger = start()

    def compute(x: Tensor) -> Tensor:
        debugger.start()
        loss = x.sin().sum()
        debugger.stop()
        debugger.step()
        return loss

    gradient_of(compute, tensor(X))
    debugger.start()
    tensor(X).cos()
    debugger.stop()
    debugger.step()
    assert list(dump_of(0).records) == ["Tensor.sin.0.forward", "Tensor.sum.0.forward"]
    assert list(dump_of(1).records) == ["Tensor.cos.0.forward"]


def test_a_backward_in_the_window_of_the_next_step_is_not_recorded() -> None:
    debugger = start()

    def compute(x: Tensor) -> Tensor:
        debugger.start()
        loss = x.sin().sum()
        debugger.step()
        debugger.start()
        return loss

    gradient_of(compute, tensor(X))
    debugger.step()
    assert dump_of(1).records == {}


def test_the_backward_of_what_was_not_recorded_is_not_recorded() -> None:
    debugger = start()

    def compute(x: Tensor) -> Tensor:
        loss = x.sin().sum()
        debugger.start()
        return loss

    gradient_of(compute, tensor(X))
    debugger.stop()
    assert dump_of().records == {}


def test_two_windows_in_one_step_go_on_counting() -> None:
    debugger = start(level="mix")
    model, x = make_net()
    for _ in range(2):
        debugger.start(model)
        train_step(model, x)
        debugger.stop()
    debugger.step()
    records = dump_of().records
    calls = {"Cell.fc.Dense.forward.0", "Cell.fc.Dense.forward.1", "Cell.fc.Dense.backward.1"}
    assert calls | {"Primitive.matmul.MatMul.0.forward", "Primitive.matmul.MatMul.1.backward"} <= records.keys()
    assert dump_of().parents["Primitive.matmul.MatMul.1.forward"] == "Cell.fc.Dense.forward.1"
    stacks = [name for names, _ in dump_of().read("stack.json").values() for name in names]
    assert {"Primitive.matmul.MatMul.0.forward", "Primitive.matmul.MatMul.1.forward"} <= set(stacks)


def test_names_start_anew_with_each_step() -> None:
    debugger = start(level="mix")
    model, x = make_net()
    for _ in range(3):
        debugger.start(model)
        train_step(model, x)
        debugger.stop()
        debugger.step()
    names = [list(dump_of(step).records) for step in range(3)]
    assert names[0] == names[1] == names[2] and "Cell.Net.forward.0" in names[0]
    assert dump_of(0).parents == dump_of(2).parents


def test_only_the_chosen_steps_are_recorded() -> None:
    debugger = start(step=[0, "2-3"])
    for _ in range(5):
        debugger.start()
        ops.ones(2)
        debugger.stop()
        debugger.step()
    assert files_in(DUMP) == ["step0", "step2", "step3"]


@pytest.mark.parametrize(
    ("step", "recorded"), [("every 3", [0, 3, 6]), (["every 4 from 2", "1-5:2"], [1, 2, 3, 5, 6]), ("0-9:5", [0, 5])]
)
def test_steps_may_be_chosen_by_a_stride(step: Any, recorded: list[int]) -> None:
    debugger = start(step=step)
    for _ in range(8):
        debugger.start()
        ops.ones(2)
        debugger.stop()
        debugger.step()
    assert files_in(DUMP) == [f"step{number}" for number in recorded]


def test_rank_0_outside_distributed_runs_records() -> None:
    Path("config.json").write_text('{"rank": [0], "dump_path": "dump"}')
    debugger = PrecisionDebugger("config.json")
    debugger.start()
    ops.ones(2)
    debugger.stop()
    assert list(dump_of().records) == ["Functional.ones.0.forward"]


def test_in_a_distributed_run_only_the_chosen_ranks_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK_ID", "1")
    monkeypatch.setenv("RANK_SIZE", "2")
    Path("config.json").write_text('{"rank": ["1-3"], "dump_path": "dump"}')
    debugger = PrecisionDebugger("config.json")
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK_ID", rank)
        debugger.start()
        ops.ones(2)
        debugger.step()
    assert files_in(DUMP) == ["step0"] and files_in(DUMP / "step0") == ["rank1"]


def test_an_exception_in_user_code_reaches_the_user_and_later_calls_are_recorded() -> None:
    debugger = start(level="mix")
    model, x = make_net()
    debugger.start(model)
    with pytest.raises(ZeroDivisionError, match="of the user"):
        gradient_of(lambda image: broken(model(image)), x)
    train_step(model, x)
    debugger.stop()
    records = dump_of().records
    assert {"Cell.Net.forward.0", "Cell.Net.forward.1", "Cell.Net.backward.1"} <= records.keys()
    assert "Cell.Net.backward.0" not in records and dump_of().coverage["failed"] == 0


def broken(_: Tensor) -> Tensor:
    raise ZeroDivisionError("of the user")


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_call_that_raises_is_a_failed_record_and_nothing_after_it_is_lost(level: str) -> None:
    debugger = start(level=level)
    model, x = make_net()
    debugger.start(model)
    with pytest.raises((ValueError, RuntimeError)):
        gradient_of(lambda image: model(image[:, :, :1]).sum(), x)  # too small for the kernel
    train_step(model, x)
    debugger.stop()
    records = dump_of().records
    failed = [name for name, fields in records.items() if "failed" in fields]
    if level != "L1":
        assert {"Cell.conv1.Conv2d.forward.0", "Cell.Net.forward.0"} <= set(failed)
        assert {"Cell.Net.backward.1", "Cell.fc.Dense.parameters_grad"} <= records.keys()
    if level != "L0":
        assert "Primitive.conv2d.Conv2D.0.forward" in failed
        assert "Primitive.conv2d.Conv2D.1.backward" in records


def test_a_backward_that_raises_in_user_code_reaches_the_user_and_the_next_step_is_whole() -> None:
    debugger = start(level="mix")
    model, x = make_net()

    def compute(image: Tensor) -> Tensor:
        hidden = model.conv1(image)
        hidden.register_hook(lambda gradient: broken(gradient))
        return hidden.sum()

    debugger.start(model)
    with pytest.raises(ZeroDivisionError, match="of the user"):
        mindspore.grad(compute, None, model.trainable_params())(x)
    debugger.stop()
    debugger.step()
    debugger.start(model)
    train_step(model, x)
    debugger.stop()
    debugger.step()
    assert {"Cell.Net.backward.0", "Cell.conv1.Conv2d.parameters_grad"} <= dump_of(1).records.keys()
    assert dump_of(1).coverage["failed"] == 0


def test_two_backward_passes_in_one_window_are_recorded_each_with_its_forward() -> None:
    debugger = start()
    debugger.start()
    for factor in (1.0, 2.0):
        gradient_of(lambda x, factor=factor: (x * factor).sin().sum(), tensor(X))
    debugger.stop()
    names = dump_of().records.keys()
    assert {"Tensor.sin.0.backward", "Tensor.sin.1.backward", "Tensor.__mul__.1.backward"} <= names
