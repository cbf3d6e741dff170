"""The flight recorder: the last steps are on disk, and stay when something happens."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensorprobe.pytorch import PrecisionDebugger

Scale = Callable[[int], float]


def steps_of(folder: Path) -> list[int]:
    return sorted(int(path.name[4:]) for path in folder.glob("step*"))


def run_of(folder: Path, step: int) -> Any:
    return json.loads((folder / f"step{step}" / "rank" / "run.json").read_text())


def train(debugger: PrecisionDebugger | None, steps: int, scale: Scale = lambda step: 1.0) -> list[Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for step in range(steps):
        if debugger is not None:
            debugger.start(model)
        loss = (model(torch.randn(8, 4)) * scale(step)).square().mean() + 1
        optimizer.zero_grad()
        loss.backward()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        if loss.isfinite():
            optimizer.step()
    return [loss.detach(), torch.get_rng_state(), *(parameter.detach() for parameter in model.parameters())]


def record(folder: Path, steps: int, scale: Scale = lambda step: 1.0, **options: Any) -> None:
    level = options.pop("level", "mix")
    train(PrecisionDebugger(dump_path=folder, level=level, flight_recorder={"steps": 3, **options}), steps, scale)
    PrecisionDebugger.reset()


def nan_at(*steps: int) -> Scale:
    return lambda step: float("nan") if step in steps else 1.0


def test_only_the_last_steps_stay_on_disk_when_nothing_happens(tmp_path: Path) -> None:
    most = []
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1", flight_recorder=3)
    train(debugger, 8, lambda step: most.append(len(steps_of(tmp_path))) or 1.0)  # type: ignore[func-returns-value]
    assert steps_of(tmp_path) == [5, 6, 7] and max(most) == 4


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_the_steps_before_a_nan_stay_and_run_json_names_the_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    record(tmp_path, 10, nan_at(5), level=level)
    assert steps_of(tmp_path) == [3, 4, 5, 7, 8, 9]
    said = run_of(tmp_path, 5)["flight_recorder"]
    assert said["trigger"] == "nonfinite" and said["reason"].startswith("NaN ")
    assert ("mul" in said["reason"]) == (level != "L0")
    assert "trigger" not in run_of(tmp_path, 4)["flight_recorder"]
    assert f"The steps 3, 4, 5 are kept. Next: tensorprobe show {tmp_path} --step 5" in caplog.text


def test_a_nan_that_goes_on_for_many_steps_is_one_trigger(tmp_path: Path) -> None:
    told: list[Any] = []
    record(tmp_path, 12, nan_at(*range(5, 12)), on=["nonfinite"], callback=told.append)
    assert [(one.kind, one.step, one.steps) for one in told] == [("nonfinite", 5, (3, 4, 5))]
    assert told[0].dump_path == tmp_path and "NaN" in told[0].reason


def test_no_more_triggers_of_a_kind_are_kept_than_max_kept(tmp_path: Path) -> None:
    told: list[Any] = []
    record(tmp_path, 20, nan_at(4, 8, 12, 16), max_kept=2, on=["nonfinite"], callback=told.append)
    assert [one.steps for one in told] == [(2, 3, 4), (6, 7, 8), (), ()]
    assert steps_of(tmp_path) == [2, 3, 4, 6, 7, 8, 17, 18, 19]


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_the_steps_before_a_loss_spike_stay(tmp_path: Path, level: str) -> None:
    record(tmp_path, 12, lambda step: 100.0 if step == 8 else 1.0, level=level, on=["loss_spike"])
    assert steps_of(tmp_path) == [6, 7, 8, 9, 10, 11]
    said = run_of(tmp_path, 8)["flight_recorder"]
    assert said["trigger"] == "loss_spike" and said["reason"].startswith(f"the loss is {said['loss']:.6g}, and the")


def test_a_loss_of_a_usual_size_is_no_spike(tmp_path: Path) -> None:
    record(tmp_path, 12, on=["loss_spike"])
    assert steps_of(tmp_path) == [9, 10, 11]


def test_sigusr1_keeps_the_last_steps_at_the_end_of_the_step_and_goes_on_to_the_handler_before(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    received: list[int] = []
    try:
        signal.signal(signal.SIGUSR1, mine := lambda number, _: received.append(number))

        def ask(step: int) -> float:
            if step == 4:
                os.kill(os.getpid(), signal.SIGUSR1)
            return 1.0

        record(tmp_path, 9, ask)
        assert received == [signal.SIGUSR1] and signal.getsignal(signal.SIGUSR1) is mine
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert steps_of(tmp_path) == [2, 3, 4, 6, 7, 8]


def test_outside_the_main_thread_sigusr1_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    thread = threading.Thread(target=record, args=(tmp_path, 5))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGUSR1) is before and steps_of(tmp_path) == [2, 3, 4]
    assert "SIGUSR1 does not keep the last steps: this is not the main thread" in caplog.text


def test_a_callback_that_fails_is_logged_and_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record(tmp_path, 6, nan_at(2), callback=lambda trigger: 1 / 0)
    assert "the callback of the flight recorder failed (ZeroDivisionError: division by zero)" in caplog.text
    assert steps_of(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_training_with_a_flight_recorder_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    plain = train(None, 8)
    recorded = train(PrecisionDebugger(dump_path=tmp_path, level="mix", flight_recorder=2), 8)
    assert all(torch.equal(one, other) for one, other in zip(plain, recorded, strict=True))


def test_with_a_stride_the_ring_holds_the_last_recorded_steps(tmp_path: Path) -> None:
    train(PrecisionDebugger(dump_path=tmp_path, step="every 2", flight_recorder=2), 9)
    assert steps_of(tmp_path) == [6, 8]


def test_a_nan_in_the_first_steps_is_one_trigger_and_nothing_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Any] = []
    record(tmp_path, 8, nan_at(*range(8)), callback=told.append)
    assert [(one.kind, one.step, one.steps) for one in told] == [("nonfinite", 0, (0,))]
    assert ". Step 0 is kept. Next:" in caplog.text and "was not recorded" not in caplog.text
    assert steps_of(tmp_path) == [0, 5, 6, 7]


@pytest.mark.parametrize("on", [["nonfinite", "loss_spike"], ["loss_spike"]])
def test_a_nan_that_goes_on_is_no_loss_spike_besides(tmp_path: Path, on: list[str]) -> None:
    told: list[Any] = []
    record(tmp_path, 12, nan_at(*range(7, 12)), on=on, callback=told.append)
    assert [(one.kind, one.step) for one in told] == [(on[0], 7)]


def test_a_loss_that_stays_high_is_one_spike_and_a_later_one_is_another(tmp_path: Path) -> None:
    told: list[Any] = []
    scale = lambda step: 5.0 if step in (7, 8, 9, 12) else 1.0  # noqa: E731
    record(tmp_path, 14, scale, spike_factor=2, callback=told.append)
    assert [(one.kind, one.step) for one in told] == [("loss_spike", 7), ("loss_spike", 12)]


def test_the_ring_is_bounded_where_the_program_numbers_its_steps_itself(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1", flight_recorder=2)
    for step in range(0, 80, 10):
        debugger.set_init_step(step)
        debugger.start()
        torch.ones(2).exp()
        debugger.stop()
    assert steps_of(tmp_path) == [50, 60, 70]


def test_what_happened_in_a_step_that_the_program_does_not_end_is_told_when_it_closes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Any] = []
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1", flight_recorder={"steps": 1, "callback": told.append})
    for step in range(3):
        debugger.start()
        torch.full((2,), -1.0 if step == 2 else 1.0).log()
        debugger.stop()
        if step < 2:
            debugger.step()
    PrecisionDebugger.reset()
    assert [(one.kind, one.step) for one in told] == [("nonfinite", 2)]
    assert "step 2: NaN came out of Tensor.log.0.forward" in caplog.text


def test_a_program_that_breaks_off_in_a_step_keeps_the_last_whole_one_too(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1", flight_recorder=1)
    for step in range(3):
        debugger.start()
        torch.ones(2).exp()
        if step < 2:
            debugger.step()
    PrecisionDebugger.reset()
    assert steps_of(tmp_path) == [1, 2]


def test_a_request_without_any_step_on_disk_says_so_and_uses_up_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def ask(step: int) -> float:
        os.kill(os.getpid(), signal.SIGUSR1)
        return 1.0

    debugger = PrecisionDebugger(dump_path=tmp_path, step="5-9", flight_recorder={"steps": 1, "max_kept": 1})
    train(debugger, 6, ask)
    PrecisionDebugger.reset()
    assert "step 0: SIGUSR1 asked for it. No step is on disk to be kept" in caplog.text
    assert "step 5: SIGUSR1 asked for it. Step 5 is kept" in caplog.text


def test_what_a_trigger_removes_counts_no_longer_against_max_disk(tmp_path: Path) -> None:
    options = {"steps": 1, "on": ["nonfinite"], "max_kept": 1}
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1", flight_recorder=options)
    train(debugger, 3)
    limit = debugger._session._limit
    before = limit._record_bytes
    train(debugger, 6, nan_at(0, 2, 4))
    PrecisionDebugger.reset()
    assert limit._record_bytes < 2.5 * before


def test_a_ring_that_a_limit_of_disk_space_ends_keeps_the_last_whole_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tensorprobe")
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1", task="tensor", flight_recorder=1, max_disk="320kB")
    for _ in range(4):
        debugger.start()
        for _ in range(4):
            torch.ones(4096) * 2
        debugger.step()
    assert steps_of(tmp_path) == [0, 1]
    assert run_of(tmp_path, 0)["complete"] and not run_of(tmp_path, 1)["complete"]
    assert ". The flight recorder has up to 2 such steps on disk, about " in caplog.text
