"""MindSpore as all tests of this folder use it: synchronous, so that a look at a result costs little."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorprobe.capture.mindspore.executor import executor
from tests.mindspore_runtime import settle_mindspore

settle_mindspore()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """MindSpore leaves files of its own where the program runs, and half a graph where an operation has failed."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    executor.clear_res()
