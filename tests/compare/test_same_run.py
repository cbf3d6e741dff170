"""Two steps of one run are said to be that: other weights and other data are no fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorprobe
from tests.compare.recording import Recording

SAID = "These are step 0 and step 5 of one run, not two runs: different data and weights are expected. "


def write_steps(folder: Path, *circumstances: dict[str, Any]) -> Path:
    """Steps 0 and 5, whose weights differ."""
    for step, known in zip((0, 5), circumstances or ({}, {}), strict=True):
        run = Recording()
        run.run |= known
        w = run.data(np.full((2, 2), 1.0 + step, np.float32), True)
        x = run.data(np.ones((2, 2), np.float32))
        run.api("Functional.linear", x, w, output=x.array @ w.array.T)
        run.write(folder, step)
    return folder


@pytest.mark.parametrize("below", ["", "rank", "rank/dump.json"])
def test_two_steps_in_one_folder(tmp_path: Path, below: str) -> None:
    folder = write_steps(tmp_path / "dump")
    result = tensorprobe.compare(folder / "step0" / below, folder / "step5" / below)
    assert result.verdict.headline.startswith(f"{SAID}The runs started from different values")


@pytest.mark.parametrize("known", [{"run_id": "a"}, {"host": "h", "pid": 7, "command": ["python", "train.py"]}])
def test_two_steps_of_one_run_that_were_copied_apart(tmp_path: Path, known: dict[str, Any]) -> None:
    paths = write_steps(tmp_path / "one", known, known) / "step0", write_steps(tmp_path / "two", known, known) / "step5"
    assert tensorprobe.compare(*paths).verdict.headline.startswith(SAID)


@pytest.mark.parametrize("other", [{"run_id": "b"}, {"run_id": "b", "host": "h", "pid": 7, "command": ["python"]}])
def test_two_runs_are_two_runs_also_where_their_steps_have_other_numbers(tmp_path: Path, other: dict[str, Any]) -> None:
    folder = write_steps(tmp_path / "dump", {"run_id": "a", "host": "h", "pid": 7, "command": ["python"]}, other)
    headline = tensorprobe.compare(folder / "step0", folder / "step5").verdict.headline
    assert headline.startswith("The runs started from different values")


def test_the_same_step_of_two_folders_is_no_such_thing(tmp_path: Path) -> None:
    paths = write_steps(tmp_path / "one"), write_steps(tmp_path / "two")
    assert tensorprobe.compare(*paths).verdict.headline.startswith("The runs agree")
