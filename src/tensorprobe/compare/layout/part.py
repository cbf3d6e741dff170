"""Where the numbers of one array are in another: a slice, every third head, rows in another order, padding.

Along each dimension by itself: what a rank has of a whole is cut out of it by dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from tensorprobe.compare.truth.same_array import is_same
from tensorprobe.replay.true_step import Array

_MOST_STARTS = 8
_PADDING = -1


@dataclass(frozen=True, eq=False)
class Part:
    """What of a whole is in a part, by the dimensions of the whole that it is cut along."""

    places: tuple[tuple[int, Array], ...] = ()
    """A dimension, and which elements along it; -1 for zeros that are not in the whole."""

    @property
    def is_whole(self) -> bool:
        return not self.places

    def take(self, whole: Array) -> Array:
        """The part of this, or of an array that is laid out like it."""
        for dim, places in self.places:
            taken = np.take(whole, np.maximum(places, 0), dim)
            padding = np.expand_dims(places < 0, tuple(range(1, whole.ndim - dim)))
            whole = np.where(padding, 0, taken) if (places < 0).any() else taken
        return whole

    def describe(self) -> str:
        """
        >>> Part(((1, np.arange(8, 16)),)).describe()
        '[8:16] along dimension 1'
        """
        return ", ".join(f"[{_describe_places(places)}] along dimension {dim}" for dim, places in self.places)


WHOLE = Part()


def _describe_places(places: Array) -> str:
    numbers = places[places >= 0]
    if not len(numbers):
        return ""
    begins = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1), len(numbers)]
    runs = [f"{numbers[begin]}:{numbers[end - 1] + 1}" for begin, end in pairwise(begins)]
    return ", ".join(runs[:4]) + (", …" if len(runs) > 4 else "")


def locate(part: Array, whole: Array, tolerance: float) -> Part | None:
    """Where the part is in the whole; None where it is not."""
    if part.size == whole.size and is_same(part, whole, tolerance):
        return WHOLE
    if part.ndim != whole.ndim or not part.size or (part.dtype.kind == "f") != (whole.dtype.kind == "f"):
        return None
    smaller = [dim for dim in range(part.ndim) if part.shape[dim] != whole.shape[dim]]
    if not smaller:
        return next((Part(((dim, found),)) for dim, found in _find_orders(part, whole, tolerance)), None)
    return _locate_along(part, whole, smaller, tolerance)


def _find_orders(part: Array, whole: Array, tolerance: float) -> Iterator[tuple[int, Array]]:
    for dim in range(part.ndim if part.size > 1 else 0):
        found = _find_places(part, whole, dim, tolerance)
        if found is not None:
            yield dim, found


def _locate_along(part: Array, whole: Array, dims: list[int], tolerance: float) -> Part | None:
    if len(dims) == 1:
        places = _find_places(part, whole, dims[0], tolerance)
        return None if places is None else Part(((dims[0], places),))
    dim, size = dims[0], part.shape[dims[0]]
    for start in range(0, whole.shape[dim] - size + 1, max(size, 1)):
        chunk = np.take(whole, range(start, start + size), dim)
        found = _locate_along(part, chunk, dims[1:], tolerance)
        if found is not None:
            return Part(((dim, np.arange(start, start + size)), *found.places))
    return None


def _find_places(part: Array, whole: Array, dim: int, tolerance: float) -> Array | None:
    """Which elements of the whole along one dimension make the part: one behind the other, or wherever they are."""
    own, others = _lay_out(part, dim), _lay_out(whole, dim)
    marks, known = _mark(own), _mark(others)
    room = 1000 * tolerance * float(np.abs(others).max(initial=0.0)) * others.shape[1] + 1e-300
    first = known[: max(len(known) - len(marks) + 1, 0)]
    starts = np.flatnonzero(np.abs(first - marks[0]) <= room)
    for start in starts[:_MOST_STARTS]:
        if is_same(own, others[start : start + len(own)], tolerance):
            return np.arange(start, start + len(own))
    order = np.argsort(known, kind="stable")
    behind = np.searchsorted(known[order], marks).clip(1, max(len(known) - 1, 1))
    if len(known) < 2:
        return None
    is_nearer = np.abs(known[order[behind - 1]] - marks) < np.abs(known[order[behind]] - marks)
    places: Array = order[behind - is_nearer]
    padding = ~own.any(axis=1) & (np.abs(known[places] - marks) > room)
    places = np.where(padding, _PADDING, places)
    if len(places) > len(known) and not padding.any():
        return None
    is_there = is_same(own, np.where(padding[:, None], 0, others[np.maximum(places, 0)]), tolerance)
    return places if is_there and (~padding).any() else None


def _lay_out(array: Array, dim: int) -> Array:
    return np.moveaxis(array, dim, 0).reshape(array.shape[dim], -1)


def _mark(rows: Array) -> Array:
    """A number for each row, the same for the same rows."""
    with np.errstate(invalid="ignore", over="ignore"):
        marks: Array = np.nan_to_num(rows.astype(np.float64), nan=1.5, posinf=2.5, neginf=3.5) @ _weights(rows.shape[1])
    return marks


@lru_cache(maxsize=256)
def _weights(count: int) -> Array:
    return np.random.default_rng(count).uniform(0.5, 1.5, count)
