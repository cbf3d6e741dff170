"""Weights that one run holds as one tensor and the other as several: query, key and value, a stack of experts, a padded
table, gates in another order. Where the numbers of a piece are in the whole, there is its gradient, too."""

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
    """For each part the whole that it is cut from. `bound`: by how much of their size elements may differ. A few
    numbers are anywhere by chance: they are looked for where other parts have left a gap, and where such parts are all
    there is: the biases of single outputs."""
    floating = [part for part in parts if part.is_floating]
    is_left: dict[int, Array] = {}
    for part in (one for one in floating if one.array.size >= _MIN_SIZE):
        for whole in wholes:
            if whole.array.size >= part.array.size and whole.is_floating:
                places = _locate(part.array, whole.array, bound)
                if places is not None:
                    is_left.setdefault(whole.number, np.ones(whole.array.size, dtype=bool))[places] = False
                    yield Piece(part, whole, places)
                    break
    small = [one for one in floating if 0 < one.array.size < _MIN_SIZE]
    for whole in wholes:
        if whole.number not in is_left and _is_covered(whole, small, bound):
            is_left[whole.number] = np.ones(whole.array.size, dtype=bool)
    for part in small:
        for whole in (one for one in wholes if one.number in is_left):
            gaps = np.flatnonzero(is_left[whole.number])
            starts = _find_starts(part.array.reshape(-1), whole.array.reshape(-1)[gaps], bound)
            if len(starts) == 1:
                places = gaps[starts[0] : starts[0] + part.array.size]
                is_left[whole.number][places] = False
                yield Piece(part, whole, places)
                break


def _is_covered(whole: TrueValue, parts: Sequence[TrueValue], bound: float) -> bool:
    """Is each of its numbers in one of these parts, and each of them in one place?"""
    flat, known = whole.array.reshape(-1), np.zeros(whole.array.size, dtype=int)
    if not whole.is_floating or not 1 < flat.size <= sum(part.array.size for part in parts):
        return False
    for part in parts:
        starts = _find_starts(part.array.reshape(-1), flat, bound) if part.array.size < flat.size else []
        for start in starts:
            known[start : start + part.array.size] += 1
    return bool(np.all(known == 1))


def pair_pieces(
    references: Sequence[TrueValue], candidates: Sequence[TrueValue]
) -> Iterator[tuple[TrueValue, TrueValue, Piece]]:
    """Those of the reference that are cut from one of the candidate, and the reverse: the leaf of each run, and where
    the smaller one lies."""
    cut: set[int] = set()
    for piece in find_pieces(references, candidates):
        cut.add(piece.part.number)
        yield piece.part, piece.whole, piece
    for piece in find_pieces(candidates, [value for value in references if value.number not in cut]):
        yield piece.whole, piece.part, piece


def _locate(part: Array, whole: Array, bound: float) -> Array | None:
    """One behind the other, also with the last two axes of the whole in the other order; else wherever they are, if no
    two numbers of the whole are alike: every third head, gates in another order."""
    numbered = np.arange(whole.size).reshape(whole.shape)
    for order in (numbered, numbered.swapaxes(-1, -2)) if whole.ndim > 1 else (numbered,):
        flat_order = order.reshape(-1)
        starts = _find_starts(part.reshape(-1), whole.reshape(-1)[flat_order], bound)
        if starts:
            return flat_order[starts[0] : starts[0] + part.size]
    flat = whole.reshape(-1)
    order = np.argsort(flat)
    if not np.all(np.diff(flat[order]) > 2 * bound * np.abs(flat[order][1:])):
        return None
    numbers = part.reshape(-1)
    behind = np.searchsorted(flat[order], numbers).clip(1, flat.size - 1)
    is_nearer = np.abs(flat[order[behind - 1]] - numbers) < np.abs(flat[order[behind]] - numbers)
    places: Array = order[behind - is_nearer]
    is_found = np.all(np.abs(flat[places] - numbers) <= bound * np.abs(numbers) + 1e-38)
    return places if is_found and len(np.unique(places)) == part.size else None


def _find_starts(part: Array, whole: Array, bound: float) -> list[int]:
    """Where all elements of one lie in the other, one behind the other."""
    allowed = bound * np.abs(part) + 1e-38
    near = np.flatnonzero(np.abs(whole[: max(whole.size - part.size + 1, 0)] - part[0]) <= allowed[0])
    return [int(start) for start in near if np.all(np.abs(whole[start : start + part.size] - part) <= allowed)]
