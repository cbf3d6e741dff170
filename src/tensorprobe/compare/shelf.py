"""The calls of steps and ranks that were compared, put away in a file: a run has millions of values, and memory has not
room for all of them.

The file is made here, has no name, and is read by this process alone.
"""

from __future__ import annotations

import pickle
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import IO, TYPE_CHECKING, overload

from tensorprobe.compare.tally import Tally

if TYPE_CHECKING:  # result.py builds on this file
    from tensorprobe.compare.result import CallResult, RankResult

MAX_VALUES = 50_000
"""So many pairs of values stay in memory; about 2 kB each."""


class ShelvedCalls(Sequence["CallResult"]):
    """The calls of one step and rank. They are read again each time that they are asked for."""

    def __init__(self, file: IO[bytes], calls: Sequence[CallResult], tally: Tally) -> None:
        self.tally = tally
        self._file = file
        self._count = len(calls)
        packed = zlib.compress(pickle.dumps(calls, pickle.HIGHEST_PROTOCOL), 1)
        self._start, self._size = file.seek(0, 2), len(packed)
        file.write(packed)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[CallResult]:
        return iter(self._read())

    @overload
    def __getitem__(self, index: int) -> CallResult: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[CallResult]: ...

    def __getitem__(self, index: int | slice) -> CallResult | Sequence[CallResult]:
        return self._read()[index]

    def _read(self) -> Sequence[CallResult]:
        self._file.seek(self._start)
        found: Sequence[CallResult] = pickle.loads(zlib.decompress(self._file.read(self._size)))
        return found


class Shelf:
    """Keeps results in memory up to some number of values, and the calls of all that follow in a file."""

    def __init__(self, max_values: int = MAX_VALUES) -> None:
        self._room = max_values
        self._file: IO[bytes] | None = None

    @property
    def is_used(self) -> bool:
        return self._file is not None

    def put(self, result: RankResult) -> RankResult:
        """The same result; what it has many of may be elsewhere."""
        self._room -= result.tally.values.total()
        if self._room >= 0 or not result.calls:
            return result
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="tensorprobe-")  # noqa: SIM115 - closed with the last result
        return replace(result, calls=ShelvedCalls(self._file, result.calls, result.tally))
