"""The sketch of a tensor: four sums of its elements, each element with a sign that is a hash of its index.

The mean square of what two sketches differ by estimates the squared distance of their tensors. Every framework and
device has the same signs; docs/format.md has the rule in words. Elements that are not finite are left out, and a
complex number is two elements, its real part first. The row of an element is index // BLOCK, its column index % BLOCK:

    sign = row sign (a bit of the hash of the row) * column sign (one for each of the four sums)

Rows can therefore be added up first, each with its sign: one sum for each column, and the four sums are taken of the
columns. BLOCK is 16 times a prime number: rows begin where memory is read fast, and no dimension of a tensor falls
into step with them. Of each four columns in a row the column signs are those of a Hadamard matrix: what differs in them
alone is measured exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

COUNT = 4
BLOCK = 16 * 127
_LOW = 0xFFFFFFFF
_CHUNK_ROWS = 16  # the elements of so many rows stay in the cache


def mix(number: Any) -> Any:
    """A hash of a number below 2**32, or of an array or tensor of them in 64-bit integers."""
    number = number ^ (number >> 16)
    number = (number * 0x7FEB352D) & _LOW
    number = number ^ (number >> 15)
    number = (number * 0x846CA68B) & _LOW
    return number ^ (number >> 16)


def row_signs(row: Any) -> Any:
    """1 or -1, by the lowest bit of the hash of a row's number."""
    return 1 - 2 * (mix(row) & 1)


def column_sign(column: Any, index: int) -> Any:
    """1 or -1, for one of the four sums."""
    common = column & index & 3
    return 1 - 2 * ((common ^ (common >> 1) ^ (mix(column >> 2) >> index)) & 1)


@cache
def column_signs() -> Array:
    """1.0 or -1.0 for each of the four sums and each column."""
    columns = np.arange(BLOCK, dtype=np.int64)
    signs: Array = np.stack([column_sign(columns, index) for index in range(COUNT)]).astype(np.float64)
    signs.flags.writeable = False
    return signs


def element_signs(count: int) -> Array:
    """The signs of the first `count` elements, for each of the four sums."""
    index = np.arange(count, dtype=np.int64)
    signs: Array = column_signs()[:, index % BLOCK] * row_signs(index // BLOCK)
    return signs


def sketch_array(array: Array) -> list[float] | None:
    """The sketch of booleans, integers, reals or complex numbers; None of anything else, of none, and of numbers whose
    sums leave the range of float64."""
    is_narrow = array.dtype.isbuiltin == 2  # bfloat16 and float8, which numpy has from ml_dtypes
    if not array.size or not (is_narrow or array.dtype.kind in "biufc"):
        return None
    flat = array.reshape(-1)
    if array.dtype.kind == "c":
        flat = np.ascontiguousarray(flat).view(flat.real.dtype)
    fold = Fold()
    with np.errstate(all="ignore"):  # sums that leave the range of float64
        for start in range(0, flat.size, _CHUNK_ROWS * BLOCK):
            wide = flat[start : start + _CHUNK_ROWS * BLOCK].astype(np.float64)
            fold.add(wide if np.isfinite(wide).all() else np.where(np.isfinite(wide), wide, 0.0))
    return fold.sketch()


class Fold:
    """The rows of a tensor, added up: those of one call in the precision of the numbers, the calls in float64."""

    def __init__(self) -> None:
        self._columns = np.zeros(BLOCK)
        self._row = 0

    def add(self, numbers: Array) -> None:
        """The next numbers, float32 or float64, all of them finite; whole rows, but for the last. Not by `dot`, which
        starts threads that compete with those of the framework."""
        rows, rest = divmod(numbers.size, BLOCK)
        if rows:
            signs = _known_signs(self._row, rows, numbers.dtype)
            self._columns += np.einsum("rc,r->c", numbers[: rows * BLOCK].reshape(rows, BLOCK), signs)
            self._row += rows
        if rest:
            place, tail = self._columns[:rest], numbers[rows * BLOCK :]
            (np.add if row_signs(self._row) > 0 else np.subtract)(place, tail, out=place)

    def sums(self) -> list[float]:
        """The four, which may have left the range of float64."""
        return project(self._columns)

    def sketch(self) -> list[float] | None:
        with np.errstate(all="ignore"):  # what leaves the range of float64 has no sketch
            return finite_sketch(self.sums())


def project(columns: Array) -> list[float]:
    """The four sums, of the sums of up to BLOCK columns. The product is too small for threads."""
    sums: list[float] = column_signs()[:, : columns.size].dot(columns).tolist()
    return sums


@lru_cache(maxsize=1024)
def _known_signs(start: int, count: int, dtype: np.dtype[Any]) -> Array:
    signs: Array = row_signs(np.arange(start, start + count, dtype=np.int64)).astype(dtype)
    return signs


def finite_sketch(sums: Sequence[float]) -> list[float] | None:
    """None where one of the sums is too large to say anything."""
    return list(sums) if all(map(math.isfinite, sums)) else None


def estimate_distance(reference: Sequence[float], candidate: Sequence[float]) -> float:
    """About the Euclidean distance of the two tensors; exactly 0 for equal ones."""
    return math.hypot(*(first - second for first, second in zip(reference, candidate, strict=True))) / math.sqrt(COUNT)
