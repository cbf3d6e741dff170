"""Both faces stop recording before the disk is full, and in the same way. What the limits mean in detail is shown
without a framework, in `tests/capture/test_disk_limit.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import mindspore
import pytest
import torch

import tensorprobe.mindspore
import tensorprobe.pytorch

FACES: dict[str, tuple[ModuleType, Callable[[], Any]]] = {
    "pytorch": (tensorprobe.pytorch, lambda: torch.ones(1000) + 1),
    "mindspore": (tensorprobe.mindspore, lambda: mindspore.ops.ones(1000) + 1),
}


def read_run(folder: Path, step: int) -> Any:
    return json.loads((folder / f"step{step}" / "rank" / "run.json").read_text())


@pytest.mark.parametrize("name", FACES)
def test_recording_stops_at_the_limit_of_disk_space_and_the_program_goes_on(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    face, compute = FACES[name]
    debugger = face.PrecisionDebugger(dump_path=tmp_path, task="tensor", max_disk="40kB")
    for _ in range(20):
        debugger.start()
        compute()
        debugger.stop()
        debugger.step()
    face.PrecisionDebugger.reset()
    last = len(list(tmp_path.iterdir())) - 1
    assert 0 < last < 19 and f"recording stops in step {last}, and the program goes on" in caplog.text
    assert read_run(tmp_path, 0)["complete"] and not read_run(tmp_path, last)["complete"]
    sizes = {path.stat().st_ino: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < 50_000
