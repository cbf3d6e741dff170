"""The window: what runs between start and stop is recorded, and the backward of it until step. Nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tensorprobe.pytorch import PrecisionDebugger
from tests.pytorch.program import DUMP, dump_of, files_in, make_net, train_step


def start(**options: Any) -> PrecisionDebugger:
    return PrecisionDebugger(dump_path=DUMP, **options)


def test_nothing_before_start_or_after_stop_is_recorded() -> None:
    debugger = start()
    x = torch.ones(2).sin()
    debugger.start()
    x.cos()
    debugger.stop()
    x.tan()
    debugger.step()
    assert list(dump_of().records) == ["Tensor.cos.0.forward"]


def test_stop_after_backward_records_forward_and_backward() -> None:
    debugger = start()
    x = torch.ones(2, requires_grad=True)
    debugger.start()
    x.sin().sum().backward()
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
    debugger.start(model)
    loss = model(x).sum()
    debugger.stop()
    after_stop, parents = dump_of(), dump_of().parents
    loss.backward()
    after_backward = dump_of()
    debugger.step()
    after_step = dump_of()
    assert "Module.fc.Linear.forward.0" in after_stop.records
    assert not any("backward" in name for name in after_stop.records)
    assert {"Module.fc.Linear.backward.0", "Module.fc.Linear.parameters_grad"} <= after_backward.records.keys()
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
    x = torch.ones(2, requires_grad=True)
    debugger.start()
    loss = x.sin().sum()
    debugger.stop()
    debugger.step()
    loss.backward()
    debugger.start()
    x.cos()
    debugger.stop()
    debugger.step()
    assert list(dump_of(0).records) == ["Tensor.sin.0.forward", "Tensor.sum.0.forward"]
    assert list(dump_of(1).records) == ["Tensor.cos.0.forward"]


def test_a_backward_in_the_window_of_the_next_step_is_not_recorded() -> None:
    debugger = start()
    x = torch.ones(2, requires_grad=True)
    debugger.start()
    loss = x.sin().sum()
    debugger.step()
    debugger.start()
    loss.backward()
    debugger.step()
    assert dump_of(1).records == {}


def test_the_backward_of_what_was_not_recorded_is_not_recorded() -> None:
    debugger = start()
    x = torch.ones(2, requires_grad=True)
    loss = x.sin().sum()
    debugger.start()
    loss.backward()
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
    calls = {"Module.fc.Linear.forward.0", "Module.fc.Linear.forward.1", "Module.fc.Linear.backward.1"}
    assert calls | {"Functional.linear.0.forward", "Functional.linear.1.backward"} <= records.keys()
    assert dump_of().parents["Functional.linear.1.forward"] == "Module.fc.Linear.forward.1"
    stacks = [name for names, _ in dump_of().read("stack.json").values() for name in names]
    assert {"Functional.linear.0.forward", "Functional.linear.1.forward"} <= set(stacks)


def test_names_start_anew_with_each_step() -> None:
    debugger = start(level="mix")
    model, x = make_net()
    for _ in range(3):
        debugger.start(model)
        train_step(model, x)
        debugger.stop()
        debugger.step()
    names = [list(dump_of(step).records) for step in range(3)]
    assert names[0] == names[1] == names[2] and "Module.Net.forward.0" in names[0]
    assert dump_of(0).parents == dump_of(2).parents


def test_only_the_chosen_steps_are_recorded() -> None:
    debugger = start(step=[0, "2-3"])
    for _ in range(5):
        debugger.start()
        torch.ones(2)
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
        torch.ones(2)
        debugger.stop()
        debugger.step()
    assert files_in(DUMP) == [f"step{number}" for number in recorded]


def test_rank_0_outside_distributed_runs_records() -> None:
    Path("config.json").write_text('{"rank": [0], "dump_path": "dump"}')
    debugger = PrecisionDebugger("config.json")
    debugger.start()
    torch.ones(2)
    debugger.stop()
    assert list(dump_of().records) == ["Torch.ones.0.forward"]


def test_in_a_distributed_run_only_the_chosen_ranks_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    Path("config.json").write_text('{"rank": ["1-3"], "dump_path": "dump"}')
    debugger = PrecisionDebugger("config.json")
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        debugger.start()
        torch.ones(2)
        debugger.step()
    assert files_in(DUMP) == ["step0"] and files_in(DUMP / "step0") == ["rank1"]


def test_a_call_of_the_model_that_was_kept_in_one_window_is_recorded_in_the_next() -> None:
    debugger = start(level="mix")
    model, x = make_net()
    debugger.start(model)
    forward = model.__call__  # as generate() of transformers keeps it
    expected = forward(x)
    debugger.step()
    assert torch.equal(forward(x), expected)
    debugger.start(model)
    result = forward(x)
    debugger.step()
    assert torch.equal(result, expected)
    first, second = dump_of(0), dump_of(1)
    assert "Module.Net.forward.0" in first.records
    assert second.records.keys() == first.records.keys() and second.parents == first.parents


def train_scaled(debugger: PrecisionDebugger | None) -> list[str]:
    """Three steps with a scaler of gradients; it makes no update in the second."""
    model, x = make_net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    found = []
    for step in range(3):
        if debugger is not None:
            debugger.start(model)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x * float("inf") if step == 1 else x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        found += [
            loss.item().hex(),
            str(scaler.get_scale()),
            *(weight.sum().item().hex() for weight in model.parameters()),
        ]
    return found


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_step_whose_update_the_scaler_skips_is_recorded_and_the_training_is_the_same(level: str) -> None:
    plain = train_scaled(None)
    assert train_scaled(start(level=level)) == plain
    names = [list(dump_of(step).records) for step in range(3)]
    linear = "Functional.linear.0.backward" if level == "L1" else "Module.fc.Linear.backward.0"
    assert all(linear in found for found in names)
    assert len(set(plain[1::6])) == 2  # the scale is halved once
