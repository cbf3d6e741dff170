"""Weights that one run holds as one tensor and the other as several: query, key and value, a stack of experts, a padded
table, gates in another order. Where the numbers of a piece are in the whole, there is its gradient, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import gcd

import numpy as np

from tensorprobe.compare.truth.same_array import TOLERANCE
from tensorprobe.compare.truth.value_index import ZERO
from tensorprobe.replay.true_step import Array, TrueValue

_MIN_SIZE = 4
_SAME_GRADIENT = 1e-6


@dataclass(frozen=True)
class Bound:
    """By how much numbers may differ: relative to their size, and by so much in any case."""

    relative: float
    least: float = 1e-38

    def around(self, numbers: Array) -> Array:
        return self.relative * np.abs(numbers) + self.least


EXACT = Bound(TOLERANCE)


@dataclass(frozen=True)
class Piece:
    """One leaf that lies in a larger one of the other run."""

    part: TrueValue
    whole: TrueValue
    places: Array
    """Where its elements are, in the flat whole."""

    @property
    def gradients(self) -> tuple[Array, Array]:
        """Of the part, and of its place in the whole; zeros where there is none."""
        part, whole = self.part.gradient, self.whole.gradient
        nothing = np.zeros(self.part.array.size)
        first = nothing if part is None else part.reshape(-1)
        return first, nothing if whole is None else whole.reshape(-1)[self.places]


def find_pieces(parts: Sequence[TrueValue], wholes: Sequence[TrueValue], bound: Bound = EXACT) -> Iterator[Piece]:
    """For each part the whole that it is cut from. `bound`: by how much elements may differ. A few
    numbers are anywhere by chance: they are looked for where other parts have left a gap, and where such parts are all
    there is: the biases of single outputs."""
    floating, wholes = ([one for one in values if one.is_floating] for values in (parts, wholes))
    is_left: dict[int, Array] = {}
    choices = [list(_iter_choices(part, wholes, bound)) for part in floating if part.array.size >= _MIN_SIZE]
    floor = _find_floor((*floating, *wholes)) if any(len(found) > 1 for found in choices) else 0.0
    for found in sorted(filter(None, choices), key=lambda pieces: len(pieces) > 1):  # first what lies in one place only
        piece = min(found, key=partial(_rank_choice, is_left, floor)) if len(found) > 1 else found[0]
        whole = piece.whole
        is_left.setdefault(whole.number, np.ones(whole.array.size, dtype=bool))[piece.places] = False
        yield piece
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


def _iter_choices(part: TrueValue, wholes: Sequence[TrueValue], bound: Bound) -> Iterator[Piece]:
    """Where it may lie: in the first whole that has its numbers, and in copies of it, such as a target network; or, if
    they are all alike, as zeros are, in any."""
    is_alike = part.ordered[0] == part.ordered[-1]
    first: TrueValue | None = None
    for whole in wholes:
        if whole.array.size < part.array.size:
            continue
        if first is None or is_alike:
            found = [Piece(part, whole, places) for places in _locate(part, whole, bound)]
            first = whole if found else None
            yield from found
        elif np.array_equal(whole.array, first.array):
            yield from (Piece(part, whole, one.places) for one in found)


def _find_floor(values: Iterable[TrueValue]) -> float:
    """What is smaller in a gradient of these is zero."""
    gradients = (one.gradient for one in values if one.gradient is not None)
    return ZERO * max((float(np.linalg.norm(one)) for one in gradients), default=0.0)


def _rank_choice(is_left: Mapping[int, Array], floor: float, piece: Piece) -> tuple[bool, bool]:
    """Those with the same gradient belong together; then what lies where no other does. `floor`: what is smaller in a
    gradient is zero."""
    first, second = piece.gradients
    with np.errstate(invalid="ignore", over="ignore"):
        size = max(float(np.linalg.norm(one)) for one in (first, second))
        is_same = float(np.linalg.norm(first - second)) <= max(_SAME_GRADIENT * size, floor)
    left = is_left.get(piece.whole.number)
    return not is_same, left is not None and not left[piece.places].all()


def _is_covered(whole: TrueValue, parts: Sequence[TrueValue], bound: Bound) -> bool:
    """Is each of its numbers in one of these parts, and each of them in one place?"""
    flat, known = whole.array.reshape(-1), np.zeros(whole.array.size, dtype=int)
    if not 1 < flat.size <= sum(part.array.size for part in parts):
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


@dataclass(frozen=True)
class Overlap:
    """What two leaves have in common of which neither lies in the other: each run has cut up weights in its own way."""

    reference: TrueValue
    candidate: TrueValue
    places: tuple[Array, Array]
    """Where their common numbers are, in both, flat."""

    @property
    def gradients(self) -> tuple[Array, Array]:
        first, second = (
            np.zeros(one.array.size) if one.gradient is None else one.gradient.reshape(-1)
            for one in (self.reference, self.candidate)
        )
        return first[self.places[0]], second[self.places[1]]


class _Cut:
    """A leaf of which parts may be in several leaves of the other run."""

    def __init__(self, leaf: TrueValue, is_known: Array | None) -> None:
        self.leaf = leaf
        self.is_known = np.zeros(leaf.array.size, dtype=bool) if is_known is None else is_known
        """Which of its numbers already have a place in the other run."""
        self.turned = turn(leaf.array)
        self._firsts = [_find_firsts(one) for one in self.turned]
        self._sorted = [np.sort(one) for one in self._firsts]

    def may_share(self, other: _Cut) -> bool:
        """Is any first number of a row there?"""
        return bool(_is_near_any(self._firsts[0], other._sorted[0]).any())

    def find_rows(self, side: int, other: _Cut, place: int) -> Iterator[tuple[int, int]]:
        """Each row with the row of the other one that is the same, with their axes in these orders."""
        rows, others = self.turned[side], other.turned[place]
        near = np.flatnonzero(_is_near_any(self._firsts[side], other._sorted[place]))
        if len(near):
            others = others.reshape(len(others), -1)
        for row in near:
            found = _find_row(rows[row].reshape(-1), others, EXACT)
            if found is not None:
                yield int(row), found


def _find_firsts(array: Array) -> Array:
    """The first number of each row, without a copy."""
    while array.ndim > 1:
        array = array[:, 0]
    return array


def pair_overlaps(
    references: Sequence[TrueValue], candidates: Sequence[TrueValue], known: Mapping[int, Array]
) -> Iterator[Overlap]:
    """Of leaves all of which the other run has, each number once, but in several of its leaves. `known`: which numbers
    of some of them lie there as a whole leaf, by `id`."""
    ours, theirs = (
        [_Cut(one, known.get(id(one))) for one in leaves if one.is_floating and one.array.size and one.array.ndim]
        for leaves in (references, candidates)
    )
    pairs = ((one, other, _find_common(one, other)) for one in ours for other in theirs)
    found = [Overlap(one.leaf, other.leaf, places) for one, other, places in pairs if places is not None]
    cuts = {id(one.leaf): one for one in (*ours, *theirs)}
    while True:
        counts: dict[int, Array] = {}
        for overlap in found:
            for side, one in enumerate((overlap.reference, overlap.candidate)):
                known_here = counts.setdefault(id(one), cuts[id(one)].is_known.astype(int))
                known_here[overlap.places[side]] += 1
        whole = {number for number, count in counts.items() if np.all(count == 1)}
        kept = [one for one in found if id(one.reference) in whole and id(one.candidate) in whole]
        if len(kept) == len(found):
            yield from kept
            return
        found = kept


def _find_common(first: _Cut, second: _Cut) -> tuple[Array, Array] | None:
    """Rows that are in both, with their axes in some order; of a bias, numbers one behind the other."""
    for here, there in product(range(len(first.turned)), range(len(second.turned))):
        rows, others = first.turned[here], second.turned[there]
        if min(rows.ndim, others.ndim) < 2 or rows.shape[1:] != others.shape[1:] or rows[0].size < _MIN_SIZE:
            continue
        pairs = list(first.find_rows(here, second, there))
        if pairs:
            places = _turn_places(first.leaf.array)[here], _turn_places(second.leaf.array)[there]
            own, other = (list(rows) for rows in zip(*pairs, strict=True))
            return places[0][own].reshape(-1), places[1][other].reshape(-1)
    if first.leaf.array.ndim == second.leaf.array.ndim == 1 and first.may_share(second):
        return _find_runs(first.leaf.array, second.leaf.array)
    return None


def may_share(first: TrueValue, second: TrueValue, bound: Bound) -> bool:
    """Might one be a piece of the other? A few numbers are anywhere by chance."""
    pairs = ((part, whole) for part, whole in ((first, second), (second, first)) if part.array.size <= whole.array.size)
    return any(part.array.size < _MIN_SIZE or _are_among(part, whole, bound) for part, whole in pairs)


def _are_among(part: TrueValue, whole: TrueValue, bound: Bound) -> bool:
    """Is each of its numbers there, in whatever place? Most are told by the largest one."""
    largest: Array = max(part.ordered[0], part.ordered[-1], key=abs)
    is_any = bool(_is_near_any(largest, whole.ordered, bound))
    return is_any and bool(_is_near_any(part.ordered, whole.ordered, bound).all())


def _is_near_any(numbers: Array, known: Array, bound: Bound = EXACT) -> Array:
    """Is one of these, in their order, as near to each number as one that is the same?"""
    allowed = bound.around(numbers)
    is_near: Array = known.searchsorted(numbers - allowed) < known.searchsorted(numbers + allowed, "right")
    return is_near


def _find_row(row: Array, others: Array, bound: Bound) -> int | None:
    """Which of these is the same, if it is one only?"""
    allowed = bound.around(np.abs(row).max())
    near = np.flatnonzero(np.abs(others[:, 0] - row[0]) <= allowed)
    same = near[np.all(np.abs(others[near] - row) <= allowed, axis=1)]
    return int(same[0]) if len(same) == 1 else None


def _find_runs(first: Array, second: Array) -> tuple[Array, Array] | None:
    order = np.argsort(second)
    allowed = EXACT.around(first)
    begin = np.searchsorted(second[order], first - allowed, "left")
    end = np.searchsorted(second[order], first + allowed, "right")
    here = np.flatnonzero(end - begin == 1)
    there = order[begin[here]]
    if not len(here):
        return None
    breaks = np.flatnonzero((np.diff(here) != 1) | (np.diff(there) != 1)) + 1
    runs = [run for run in np.split(np.arange(len(here)), breaks) if len(run) >= _MIN_SIZE]
    kept = np.concatenate(runs) if runs else np.zeros(0, dtype=int)
    return (here[kept], there[kept]) if len(kept) else None


def _locate(one: TrueValue, other: TrueValue, bound: Bound) -> list[Array]:
    """One behind the other, also with the last two axes of either in the other order; else row by row, as gates in
    another order are; else wherever they are, if no two numbers of the whole are alike."""
    if not _are_among(one, other, bound):
        return []
    part, whole = one.array, other.array
    step = gcd(part.size, whole.size)  # parts of equal numbers lie beside each other
    turned = list(product(_turn_places(whole), _turn_places(part)))
    for order, turns in turned:
        flat_order, own_order = order.reshape(-1), turns.reshape(-1)
        starts = _find_starts(part.reshape(-1)[own_order], whole.reshape(-1)[flat_order], bound)
        starts = starts if len(starts) == 1 else [start for start in starts if not start % step] or starts[:1]
        if starts:
            back = np.argsort(own_order)
            return [flat_order[start : start + part.size][back] for start in starts]
    for order, turns in turned:
        rows = _find_rows(part.reshape(-1)[turns], whole.reshape(-1)[order], bound)
        if rows is not None:
            return [order[rows].reshape(-1)[np.argsort(turns.reshape(-1))]]
    flat = whole.reshape(-1)
    order = np.argsort(flat)
    if not np.all(np.diff(flat[order]) > 2 * bound.around(flat[order][1:])):
        return []
    numbers = part.reshape(-1)
    behind = np.searchsorted(flat[order], numbers).clip(1, flat.size - 1)
    is_nearer = np.abs(flat[order[behind - 1]] - numbers) < np.abs(flat[order[behind]] - numbers)
    places: Array = order[behind - is_nearer]
    is_found = np.all(np.abs(flat[places] - numbers) <= bound.around(numbers))
    return [places] if is_found and len(np.unique(places)) == part.size else []


def _turn_places(array: Array) -> list[Array]:
    return turn(np.arange(array.size).reshape(array.shape))


def turn(array: Array) -> list[Array]:
    """As it is, and with its last two axes in the other order."""
    return [array, array.swapaxes(-1, -2)] if array.ndim > 1 else [array]


def _find_starts(part: Array, whole: Array, bound: Bound) -> list[int]:
    """Where all elements of one lie in the other, one behind the other."""
    allowed = bound.around(part)
    near = np.flatnonzero(np.abs(whole[: max(whole.size - part.size + 1, 0)] - part[0]) <= allowed[0])
    return [int(start) for start in near if np.all(np.abs(whole[start : start + part.size] - part) <= allowed)]


def _find_rows(part: Array, whole: Array, bound: Bound) -> list[int] | None:
    """Where each row of one is in the other, if it is in one place there. Numbers may repeat, as in a checkpoint in
    bfloat16; rows do not."""
    if part.ndim < 2 or part.shape[1:] != whole.shape[1:] or part[0].size < _MIN_SIZE:
        return None
    rows, others = part.reshape(len(part), -1), whole.reshape(len(whole), -1)
    found = list[int]()
    for row in rows:
        place = _find_row(row, others, bound)
        if place is None:
            return None
        found.append(place)
    return found if len(set(found)) == len(found) else None
