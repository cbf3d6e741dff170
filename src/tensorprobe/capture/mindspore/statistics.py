"""Max, Min, Mean, Norm and sketch of an array on the host.

NaN is left out of the first four and counted; infinities count as values and are counted too. The magnitude stands
for complex numbers. Sums are taken in float64, in pieces that stay in the cache.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorprobe.capture import native
from tensorprobe.model.record import Stats
from tensorprobe.store.sketch import BLOCK, Fold, finite_sketch, sketch_array

Array = np.ndarray[Any, Any]

_CHUNK = 16 * BLOCK
_KINDS = {
    "float32": native.FLOAT32,
    "float64": native.FLOAT64,
    "bfloat16": native.BFLOAT16,
    "float16": native.FLOAT16,
}
_TINY = 1e-280  # squares below this have lost digits


def reduce_array(array: Array) -> Stats:
    """The statistics of an array of booleans, integers, reals or complex numbers."""
    if array.size == 0:
        return Stats(reason="empty")
    flat = array.reshape(-1)
    if flat.dtype.kind == "f" or flat.dtype.name in _KINDS:
        found = _reduce_compiled(flat) or (_reduce_finite(flat) if flat.dtype.kind == "f" else None)
        if found is not None:
            return found
    return _reduce_any(flat).reordered(sketch_array(flat))


def _reduce_compiled(flat: Array) -> Stats | None:
    """None where there is no compiled code for it, or all numbers are NaN, or squares leave the range of float64."""
    kind = _KINDS.get(flat.dtype.name)
    if kind is None or not flat.dtype.isnative:
        return None
    line = np.ascontiguousarray(flat)
    found = native.reduce_memory(line.__array_interface__["data"][0], line.size, kind, 1)
    if found is None or found[4] == line.size:
        return None
    largest, smallest, total, norm, nans, infs, *sketch = found
    return Stats(largest, smallest, total / (line.size - nans), norm, nans, infs, sketch=finite_sketch(sketch))


def _reduce_any(flat: Array) -> Stats:
    """All but the sketch."""
    kind = flat.dtype.kind
    if kind == "b":
        return _reduce_truths(flat)
    if kind in "iu":
        return _reduce_integers(flat)
    return _reduce_reals(np.abs(flat.astype(np.complex128)) if kind == "c" else flat.astype(np.float64))


def sum_of_squares(numbers: Array) -> float:
    """Not by `dot`: the threads that it starts compete with those of MindSpore."""
    return float(np.einsum("i,i->", numbers, numbers))


def _reduce_truths(flat: Array) -> Stats:
    count = int(np.count_nonzero(flat))
    return Stats(count > 0, count == flat.size, count / flat.size, math.sqrt(count))


def _reduce_integers(flat: Array) -> Stats:
    total = squares = 0.0
    for start in range(0, flat.size, _CHUNK):
        wide = flat[start : start + _CHUNK].astype(np.float64)
        total += float(np.add.reduce(wide))
        squares += sum_of_squares(wide)
    return Stats(int(flat.max()), int(flat.min()), total / flat.size, math.sqrt(squares))


def _reduce_finite(flat: Array) -> Stats | None:
    """The frequent case: everything is finite. None if it is not, or if the squares leave the range of float64."""
    largest, smallest = -math.inf, math.inf
    total = squares = 0.0
    fold = Fold()
    for start in range(0, flat.size, _CHUNK):
        chunk = flat[start : start + _CHUNK]
        wide = chunk.astype(np.float64)
        squares += sum_of_squares(wide)
        if not math.isfinite(squares):
            return None
        fold.add(wide)
        total += float(np.add.reduce(wide))
        numbers = wide if chunk.itemsize < 4 else chunk  # numpy is slow with half precision
        largest = max(largest, float(np.maximum.reduce(numbers)))
        smallest = min(smallest, float(np.minimum.reduce(numbers)))
    if squares < _TINY and (largest or smallest):
        return None
    return Stats(largest, smallest, total / flat.size, math.sqrt(squares), sketch=fold.sketch())


def _reduce_reals(wide: Array) -> Stats:
    """Any float64 numbers, NaN and infinities among them, and those whose squares leave the range."""
    is_nan = np.isnan(wide)
    nan_count = int(np.count_nonzero(is_nan))
    numbers = wide[~is_nan] if nan_count else wide
    if not numbers.size:
        return Stats(math.nan, math.nan, math.nan, math.nan, nan_count=nan_count)
    largest, smallest = float(numbers.max()), float(numbers.min())
    scale = max(abs(largest), abs(smallest))
    with np.errstate(all="ignore"):  # the sum of both infinities is NaN, and that is what is written
        if math.isinf(scale):
            mean, norm = float(np.add.reduce(numbers)), math.inf
        elif scale == 0.0:
            mean = norm = 0.0
        else:
            scaled = numbers / scale
            mean = scale * (float(np.add.reduce(scaled)) / numbers.size)
            norm = scale * math.sqrt(sum_of_squares(scaled))
    return Stats(largest, smallest, mean, norm, nan_count, int(np.count_nonzero(np.isinf(numbers))))
