"""Every test starts as a fresh process does: in an empty working directory, and without a debugger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorprobe.pytorch import PrecisionDebugger


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    PrecisionDebugger.reset()
    yield tmp_path
    PrecisionDebugger.reset()
