"""Two arrays of one shape, piece by piece: small enough for the cache, in the order in which they lie in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tensorprobe.store.tensor_file import forget_pages

Array = np.ndarray[Any, Any]

CHUNK_ELEMENTS = 1 << 16
_FORGET_AFTER = 1 << 24
"""Elements between two times at which the memory of mapped files is given back."""


class ChunkedPair:
    """Iterates over (position, piece of the reference, piece of the candidate), both of one dimension."""

    def __init__(self, reference: Array, candidate: Array) -> None:
        assert reference.shape == candidate.shape
        self._axes = sorted(range(reference.ndim), key=lambda axis: -reference.strides[axis])
        self._reference = reference.transpose(self._axes)
        self._candidate = candidate.transpose(self._axes)

    @property
    def largest_piece(self) -> int:
        return min(self._reference.size, CHUNK_ELEMENTS)

    def __iter__(self) -> Iterator[tuple[int, Array, Array]]:
        reference, candidate = self._reference, self._candidate
        is_plain = reference.flags.c_contiguous and candidate.flags.c_contiguous
        pieces = _slice(reference.reshape(-1), candidate.reshape(-1)) if is_plain else _gather(reference, candidate)
        position, forgotten = 0, 0
        for first, second in pieces:
            yield position, first, second
            position += len(first)
            if position - forgotten >= _FORGET_AFTER:
                forget_pages(reference)
                forget_pages(candidate)
                forgotten = position

    def index(self, position: int) -> tuple[int, ...]:
        """Where in the arrays, as they were given, the element at a position lies."""
        found = np.unravel_index(position, self._reference.shape)
        index = [0] * len(found)
        for axis, place in zip(self._axes, found, strict=True):
            index[axis] = int(place)
        return tuple(index)


def _slice(reference: Array, candidate: Array) -> Iterator[tuple[Array, Array]]:
    for start in range(0, len(reference), CHUNK_ELEMENTS):
        yield reference[start : start + CHUNK_ELEMENTS], candidate[start : start + CHUNK_ELEMENTS]


def _gather(reference: Array, candidate: Array) -> Iterator[tuple[Array, Array]]:
    """Where one of them has gaps, or lies in another order, its elements are copied together."""
    flags: Any = ["external_loop", "buffered", "zerosize_ok"]
    # Pieces without gaps, so that their bytes can be compared.
    wishes: Any = [["readonly", "contig", "aligned", "nbo"]] * 2
    yield from np.nditer([reference, candidate], flags, wishes, order="C", buffersize=CHUNK_ELEMENTS)
