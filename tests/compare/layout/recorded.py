"""Dumps that are recorded when a test first asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path


class Recorded:
    """A folder of dumps: `recorded / name` is the path of one, which exists from then on."""

    def __init__(self, folder: Path, record: Callable[[Path, Iterable[str]], None], together: Iterable[str] = ()):
        """`record` has the folder and the names of some dumps. Those in `together` are recorded at once, when the first
        of them is asked for: to start processes takes longer than to record."""
        self._folder = folder
        self._record = record
        self._together = frozenset(together)
        self._names: set[str] = set()

    def __truediv__(self, name: str) -> Path:
        if name not in self._names:
            names = self._together if name in self._together else {name}
            self._record(self._folder, sorted(names))
            self._names |= names
        return self._folder / name
