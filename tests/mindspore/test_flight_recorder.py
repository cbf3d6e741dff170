"""The flight recorder: the last steps are on disk, and stay when something happens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore
from mindspore import Tensor, nn, ops

from tensorprobe.mindspore import PrecisionDebugger
from tests.mindspore_runtime import settle_mindspore


def steps_of(folder: Path) -> list[int]:
    return sorted(int(path.name[4:]) for path in folder.glob("step*"))


def run_of(folder: Path, step: int) -> Any:
    return json.loads((folder / f"step{step}" / "rank" / "run.json").read_text())


def record(folder: Path, steps: int, scale: Callable[[int], float] = lambda step: 1.0, **options: Any) -> None:
    settle_mindspore()
    mindspore.set_seed(0)
    model = nn.Dense(4, 2)
    debugger = PrecisionDebugger(dump_path=folder, level="L1", flight_recorder={"steps": 3, **options})
    for step in range(steps):
        factor = scale(step)

        def forward(x: Tensor, factor: float = factor) -> Tensor:
            return ops.square(model(x) * factor).mean() + 1

        debugger.start(model)
        mindspore.value_and_grad(forward, None, model.trainable_params())(ops.ones((8, 4)))
        debugger.stop()
        debugger.step()
    PrecisionDebugger.reset()


def test_only_the_last_steps_stay_on_disk_when_nothing_happens(tmp_path: Path) -> None:
    record(tmp_path, 6)
    assert steps_of(tmp_path) == [3, 4, 5]


def test_the_steps_before_a_nan_stay_and_the_callback_is_told(tmp_path: Path) -> None:
    told: list[Any] = []
    record(tmp_path, 9, lambda step: float("nan") if step == 4 else 1.0, callback=told.append)
    assert steps_of(tmp_path) == [2, 3, 4, 6, 7, 8]
    assert run_of(tmp_path, 4)["flight_recorder"]["trigger"] == "nonfinite"
    assert [(one.kind, one.steps) for one in told] == [("nonfinite", (2, 3, 4))]


def test_the_steps_before_a_loss_spike_stay(tmp_path: Path) -> None:
    record(tmp_path, 11, lambda step: 100.0 if step == 7 else 1.0, on=["loss_spike"])
    assert steps_of(tmp_path) == [5, 6, 7, 8, 9, 10]
    assert run_of(tmp_path, 7)["flight_recorder"]["trigger"] == "loss_spike"
