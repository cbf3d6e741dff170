"""What programs that are run as processes of their own share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def memory_disk(tmp_path: Path) -> Iterator[Path]:
    """Where to bring files to disk takes no time, if there is such a place: each stop does it."""
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else tmp_path) as folder:
        yield Path(folder)
