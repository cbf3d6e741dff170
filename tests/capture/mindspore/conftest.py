"""MindSpore as all tests of this folder use it: synchronous, so that a look at a result costs little."""

from __future__ import annotations

from pathlib import Path

import mindspore
import pytest

mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
mindspore.runtime.launch_blocking()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """MindSpore leaves files of its own where the program runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
