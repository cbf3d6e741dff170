"""Weights that one run holds as one tensor and the other as several: query, key and value, a stack of experts, a padded
table. A piece lies in the whole in its own order, so its gradient does, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tensorprobe.compare.truth.value_index import TOLERANCE
from tensorprobe.replay.true_step import Array, TrueValue

_MIN_SIZE = 4


@dataclass(frozen=True)
class Piece:
    """One leaf that lies in a larger one of the other run."""

    part: TrueValue
    whole: TrueValue
    places: Array
    """Where its elements are, in the flat whole."""


def find_pieces(parts: Sequence[TrueValue], wholes: Sequence[TrueValue], bound: float = TOLERANCE) -> Iterator[Piece]:
    """For each part the whole that it is cut from, along the first axis or along the second. `bound`: by how much of
    their size elements may differ."""
    for part in parts:
        if part.array.size < _MIN_SIZE or not part.is_floating:
            continue
        for whole in wholes:
            if whole.array.size > part.array.size and whole.is_floating:
                places = _locate(part.array, whole.array, bound)
                if places is not None:
                    yield Piece(part, whole, places)
                    break


def _locate(part: Array, whole: Array, bound: float) -> Array | None:
    numbers = np.arange(whole.size)
    found = _locate_flat(part.reshape(-1), whole.reshape(-1), bound)
    if found is not None:
        return numbers[found : found + part.size]
    if whole.ndim >= 2 and part.ndim == whole.ndim and part.shape[0] == whole.shape[0]:
        turned = np.swapaxes(numbers.reshape(whole.shape), 0, 1)
        found = _locate_flat(np.swapaxes(part, 0, 1).reshape(-1), whole.reshape(-1)[turned.reshape(-1)], bound)
        if found is not None:
            places = turned.reshape(-1)[found : found + part.size]
            return np.swapaxes(places.reshape(np.swapaxes(part, 0, 1).shape), 0, 1).reshape(-1)
    return None


def _locate_flat(part: Array, whole: Array, bound: float) -> int | None:
    """Where all elements of one lie in the other, one behind the other."""
    allowed = bound * np.abs(part) + 1e-38
    for start in np.flatnonzero(np.abs(whole[: whole.size - part.size + 1] - part[0]) <= allowed[0]):
        if np.all(np.abs(whole[start : start + part.size] - part) <= allowed):
            return int(start)
    return None
