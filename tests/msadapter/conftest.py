"""Every test starts as a fresh process does: in an empty working directory, and without a debugger.

These tests need a process of their own, in which `torch` is MSAdapter's: `program.py` skips them elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    from tensorprobe.capture.mindspore.executor import executor
    from tensorprobe.mindspore import PrecisionDebugger

    monkeypatch.chdir(tmp_path)
    PrecisionDebugger.reset()
    executor.set_grad_flag(True)  # as MSAdapter does when it is imported; value_and_grad takes it back for good
    yield tmp_path
    PrecisionDebugger.reset()
