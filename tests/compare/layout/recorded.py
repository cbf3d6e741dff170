"""Dumps that are recorded when a test first asks for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


class Recorded:
    """A folder of dumps: `recorded / name` is the path of one, which exists from then on."""

    def __init__(self, folder: Path, record: Callable[[str, Path], None]) -> None:
        """`record` has the name of a dump and the folder for all of them."""
        self._folder = folder
        self._record = record
        self._names: set[str] = set()

    def __truediv__(self, name: str) -> Path:
        if name not in self._names:
            self._record(name, self._folder)
            self._names.add(name)
        return self._folder / name
