"""Are two arrays the same numbers, in the same order or laid out otherwise; and which arrays say nothing?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations as iter_permutations

import numpy as np

from tensorprobe.replay.true_step import Array

TOLERANCE = 1e-9
"""Between what two truths of one value differ by (1e-12) and what the smallest fault does (1e-7)."""
MASKED = -8192.0
"""What is smaller may mean minus infinity: masks are -10,000 and less, and scores may have been added to them."""
_GAP = 2
"""It does where so many powers of two lie between it and all that is nearer to zero: real numbers come in all sizes."""
SURELY_MASKED = -1e9
_CERTAINLY_MASKED = -1e30
"""The same of a constant, and of a single number: a loss may be as large as the former."""
_INFINITY = 1100
"""Larger than the power of two of any number."""
_MAX_AXES = 6
_FEW = 4
"""A larger value with fewer different numbers in it says nothing."""
_MAX_LOOKED_AT = 4096
_FEW_PLACES = 16


def find_masked(array: Array) -> Array | None:
    """Which elements stand for minus infinity; None if none does."""
    if array.dtype.kind != "f" or array.min(initial=0.0) >= MASKED:
        return None
    if array.max() < MASKED:
        bound = SURELY_MASKED if array.size > 1 else _CERTAINLY_MASKED
        return np.ones(array.shape, bool) if is_constant(array) and array.flat[0] <= bound else None
    powers = np.where(np.isinf(array), _INFINITY, np.frexp(array)[1])
    low = array < MASKED
    taken = _find_taken(powers[~np.isnan(array)])
    for power in sorted(_find_taken(powers[low])):
        if taken.isdisjoint(range(power - _GAP, power)):
            return np.asarray(low & (powers >= power))
    return None


def _find_taken(powers: Array) -> set[int]:
    """Which of them occur."""
    least = int(powers.min(initial=_INFINITY))
    return {least + int(place) for place in np.flatnonzero(np.bincount(powers.reshape(-1) - least))}


def settle(array: Array) -> Array:
    """The content without what is masked, which has no size: beside it all else would be too small to differ."""
    masked = find_masked(array)
    return array if masked is None else np.where(masked, 0.0, array)


def is_same(first: Array, second: Array, tolerance: float = TOLERANCE) -> bool:
    """Equal element by element, whatever the shapes are. NaN is equal to NaN."""
    if first.size != second.size:
        return False
    one, other = first.reshape(-1), second.reshape(-1)
    if one.dtype.kind not in "fc" or other.dtype.kind not in "fc":
        return bool(np.array_equal(one, other))
    masked = find_masked(one)
    others = None if masked is None else find_masked(other)
    if masked is not None and others is not None:
        if not np.array_equal(masked, others):
            return False
        one, other = np.where(masked, 0.0, one), np.where(masked, 0.0, other)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = one - other
        largest = np.abs(difference).max(initial=0.0)
        if not np.isfinite(largest):
            lost = ~np.isfinite(one)
            if not np.array_equal(one[lost], other[lost], equal_nan=True):
                return False
            one, difference = np.where(lost, 0, one), np.where(lost, 0, difference)
            largest = np.abs(difference).max(initial=0.0)
        if not largest:
            return True
        if not largest <= 100 * tolerance * np.abs(one).max(initial=0.0):
            return False
        return bool(np.linalg.norm(difference) <= tolerance * np.linalg.norm(one))


def is_laid_out(first: Array, second: Array, tolerance: float = TOLERANCE, *, allows_square: bool = False) -> bool:
    """Equal after the axes of one of them are permuted. Where that changes no length (`allows_square` is not given) the
    other order may be the fault: a product of the factors exchanged."""
    if first.size != second.size:
        return False
    if max(sum(size > 1 for size in array.shape) for array in (first, second)) < 2:
        return False
    room = 100 * tolerance * float(np.abs(first).max(initial=0.0))
    places = np.linspace(0, first.size - 1, _FEW_PLACES).astype(np.int64)
    for array, other in ((first, second), (second, first)):
        few = _take(other, places)
        for axes in permutations(array):
            moved = np.transpose(array, axes)
            if not allows_square and moved.shape == array.shape:
                continue
            if _is_alike(_take(moved, places), few, room) and is_same(moved, other, tolerance):
                return True
    return False


def _take(array: Array, places: Array) -> Array:
    return np.asarray(array[np.unravel_index(places, array.shape)])


def _is_alike(few: Array, others: Array, room: float) -> bool:
    """Are these few of the elements the same? Most orders of axes are refuted by them."""
    if few.dtype.kind != "f" or others.dtype.kind != "f":
        return True
    with np.errstate(invalid="ignore"):
        return not (np.abs(np.maximum(few, MASKED) - np.maximum(others, MASKED)) > room).any()


def permutations(array: Array) -> Iterator[tuple[int, ...]]:
    long = [axis for axis, size in enumerate(array.shape) if size > 1]
    if not 2 <= len(long) <= _MAX_AXES:
        return
    for order in iter_permutations(long):
        if list(order) != long:
            placed = iter(order)
            yield tuple(next(placed) if axis in long else axis for axis in range(array.ndim))


def is_constant(array: Array) -> bool:
    """Are its numbers all alike?"""
    return bool((array == array.flat[0]).all()) if array.size else True


def is_plain(array: Array) -> bool:
    """Has it no information of its own?"""
    flat = array.reshape(-1)
    if flat.size < _FEW or flat.dtype.kind == "b":
        return flat.dtype.kind not in "fc" or is_round(flat)  # one number with many digits is known by them
    looked_at = settle(flat if flat.size <= _MAX_LOOKED_AT else flat[:: flat.size // _MAX_LOOKED_AT + 1])
    looked_at = looked_at[np.isfinite(looked_at)] if looked_at.dtype.kind == "f" else looked_at
    if len(np.unique(looked_at)) < _FEW:
        return True
    return is_round(looked_at)


def is_round(array: Array) -> bool:
    """Are all of them numbers that every precision has: 0.5, 3, 1/64?"""
    return bool(array.dtype.kind in "fc" and np.array_equal(array * 64, np.round(array * 64)))


def norm_of(array: Array | None) -> float:
    return 0.0 if array is None else float(np.linalg.norm(array))
