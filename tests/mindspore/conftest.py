"""Every test starts as a fresh process does: in an empty folder, in PyNative mode, and without a debugger."""

from __future__ import annotations

import os

os.environ.setdefault("GLOG_v", "3")  # before the import: MindSpore then keeps its warnings to itself

from collections.abc import Iterator
from pathlib import Path

import mindspore
import pytest

from tensorprobe.capture.mindspore.executor import executor
from tensorprobe.mindspore import PrecisionDebugger
from tests.mindspore_runtime import settle_mindspore

settle_mindspore()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    PrecisionDebugger.reset()
    yield tmp_path
    PrecisionDebugger.reset()
    executor.clear_res()  # half a graph is left where an operation has failed
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
