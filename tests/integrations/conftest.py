"""Each test works in a folder of its own, and leaves no debugger behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorprobe.pytorch import PrecisionDebugger


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    PrecisionDebugger.reset()
