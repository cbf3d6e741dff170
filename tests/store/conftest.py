"""A store in memory, for the tests of what is read from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensorprobe.store import mirror


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("TENSORPROBE_CACHE", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    mirror._mirrors.clear()
    memory.pipe("/run/step0/a.json", b"first")
    return memory
