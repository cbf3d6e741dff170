"""The sketch of a tensor: four sums of its elements, each element with a sign that is a hash of its index.

The mean square of what two sketches differ by estimates the squared distance of their tensors. Every framework and
device has the same signs; docs/format.md has the rule in words. Elements that are not finite are left out, and a
complex number is two elements, its real part first. The row of an element is index // BLOCK, its column index % BLOCK:

    sign = row sign (a bit of the hash of the row) * column sign (one for each of the four sums)

Rows can therefore be added up first, each with its sign, in one pass over the tensor. BLOCK is a prime number, so that
no dimension of a tensor falls into step with the rows. Of each four columns in a row the column signs are those of a
Hadamard matrix: what differs in them alone is measured exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

COUNT = 4
BLOCK = 1021
_LOW = 0xFFFFFFFF
_CHUNK_ROWS = 32  # the elements of so many rows stay in the cache


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
    for start in range(0, flat.size, _CHUNK_ROWS * BLOCK):
        wide = flat[start : start + _CHUNK_ROWS * BLOCK].astype(np.float64)
        fold.add(wide if np.isfinite(wide).all() else np.where(np.isfinite(wide), wide, 0.0))
    return fold.sketch()


class Fold:
    """The rows of a tensor, added up."""

    def __init__(self) -> None:
        self._columns = np.zeros(BLOCK)
        self._row = 0

    def add(self, numbers: Array) -> None:
        """The next float64 numbers, all of them finite; whole rows, but for the last."""
        rows, rest = divmod(numbers.size, BLOCK)
        with np.errstate(all="ignore"):  # what leaves the range of float64 has no sketch
            if rows:
                signs = row_signs(np.arange(self._row, self._row + rows, dtype=np.int64)).astype(np.float64)
                # Not by `dot`, which starts threads that compete with those of the framework.
                self._columns += np.einsum("rc,r->c", numbers[: rows * BLOCK].reshape(rows, BLOCK), signs)
            if rest:
                self._columns[:rest] += row_signs(self._row + rows) * numbers[rows * BLOCK :]
        self._row += rows

    def sketch(self) -> list[float] | None:
        with np.errstate(all="ignore"):
            return finite_sketch(np.einsum("kc,c->k", column_signs(), self._columns).tolist())


def finite_sketch(sums: Sequence[float]) -> list[float] | None:
    """None where one of the sums is too large to say anything."""
    return list(sums) if all(map(math.isfinite, sums)) else None


def estimate_distance(reference: Sequence[float], candidate: Sequence[float]) -> float:
    """About the Euclidean distance of the two tensors; exactly 0 for equal ones."""
    return math.hypot(*(first - second for first, second in zip(reference, candidate, strict=True))) / math.sqrt(COUNT)
