"""The numbers in the names of calls."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count


class CallCounts:
    """How often each API and each module was called in a step."""

    def __init__(self) -> None:
        self._counts: dict[str, Iterator[int]] = {}

    def next(self, stem: str) -> int:
        """How often it was asked for before."""
        counter = self._counts.get(stem)
        if counter is None:  # several threads may be here: one of them wins
            counter = self._counts.setdefault(stem, count())
        return next(counter)

    def clear(self) -> None:
        self._counts.clear()
