"""Which values of one run exist in the other?

Size, norm and sums propose; elements decide, in the same order, or after the axes of one are permuted. A value without
information of its own (zeros, one constant, small whole numbers) exists everywhere: it counts only if it was made by
the same operation.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tensorprobe.replay.true_step import UNITS, Array, TrueCall, TrueStep, TrueValue
from tensorprobe.word.spelling import common_word

TOLERANCE = 1e-9
"""Between what two truths of one value differ by (1e-12) and what the smallest fault does (1e-7)."""
_ROUNDED_UNITS = 64.0
"""Where recorded results or rounded constants had to be taken, truths differ by so many of their roundings."""
_FINE = 1e-6
MASKED = -1e4
"""What is smaller means minus infinity: a mask."""
_MAX_AXES = 6
_FEW = 4
"""A larger value with fewer different numbers in it says nothing."""
_MAX_LOOKED_AT = 4096


def settle(array: Array) -> Array:
    """The content in one spelling: masks have one number for what is masked."""
    if array.dtype.kind != "f":
        return array
    low = array < MASKED
    return np.where(low, MASKED, array) if low.any() else array


def is_same(first: Array, second: Array, tolerance: float = TOLERANCE) -> bool:
    """Equal element by element, whatever the shapes are. NaN is equal to NaN."""
    if first.size != second.size:
        return False
    one, other = settle(first).reshape(-1), settle(second).reshape(-1)
    if one.dtype.kind not in "fc" or other.dtype.kind not in "fc":
        return bool(np.array_equal(one, other))
    lost = np.isnan(one)
    if not np.array_equal(lost, np.isnan(other)):
        return False
    one, other = np.where(lost, 0, one), np.where(lost, 0, other)
    with np.errstate(invalid="ignore", over="ignore"):
        is_close = np.isclose(one, other, rtol=0, atol=0)  # infinities
        difference = np.where(is_close, 0, one - other)
        scale = np.abs(one[np.isfinite(one)]).max(initial=0.0)
        largest = np.abs(difference).max(initial=0.0)
        norm = np.linalg.norm(np.where(np.isfinite(one), one, 0))
        return bool(largest <= 100 * tolerance * scale and np.linalg.norm(difference) <= tolerance * norm)


def is_laid_out(first: Array, second: Array, tolerance: float = TOLERANCE, *, allows_square: bool = False) -> bool:
    """Equal after the axes of one of them are permuted. Where that changes no length (`allows_square` is not given) the
    other order may be the fault: a product of the factors exchanged."""
    for array, other in ((first, second), (second, first)):
        for axes in permutations(array):
            moved = np.transpose(array, axes)
            if (allows_square or moved.shape != array.shape) and is_same(moved, other, tolerance):
                return True
    return False


def permutations(array: Array) -> Iterator[tuple[int, ...]]:
    long = [axis for axis, size in enumerate(array.shape) if size > 1]
    if not 2 <= len(long) <= _MAX_AXES:
        return
    for order in itertools.permutations(long):
        if list(order) != long:
            placed = iter(order)
            yield tuple(next(placed) if axis in long else axis for axis in range(array.ndim))


def is_plain(array: Array) -> bool:
    """Has it no information of its own?"""
    flat = settle(array).reshape(-1)
    if flat.size < _FEW or flat.dtype.kind == "b":
        return flat.dtype.kind != "f" or is_round(flat)  # one number with many digits is known by them
    looked_at = flat if flat.size <= _MAX_LOOKED_AT else flat[:: flat.size // _MAX_LOOKED_AT + 1]
    looked_at = looked_at[np.isfinite(looked_at)] if looked_at.dtype.kind == "f" else looked_at
    if len(np.unique(looked_at)) < _FEW:
        return True
    return is_round(looked_at)


def is_round(array: Array) -> bool:
    """Are all of them numbers that every precision has: 0.5, 3, 1/64?"""
    return bool(array.dtype.kind == "f" and np.array_equal(array * 64, np.round(array * 64)))


@dataclass(frozen=True)
class Moments:
    """What proposes that two values are the same."""

    norm: float
    sums: tuple[float, float, float]

    def times(self, factor: float) -> Moments:
        total, absolute, quartic = self.sums
        return Moments(self.norm * abs(factor), (total * factor, absolute * abs(factor), quartic * abs(factor)))

    def is_near(self, other: Moments, tolerance: float) -> bool:
        bound = max(1e-6, 10 * tolerance) * max(self.sums[1], self.norm)
        return all(abs(a - b) <= bound for a, b in zip(self.sums, other.sums, strict=True))


def measure(array: Array) -> Moments:
    flat = settle(array).reshape(-1)
    flat = np.abs(flat) if flat.dtype.kind == "c" else flat.astype(np.float64)
    flat = flat[np.isfinite(flat)]
    with np.errstate(over="ignore", invalid="ignore"):
        scale = np.abs(flat).max(initial=0.0) or 1.0
        unit = flat / scale
        quartic = float((unit**4).sum()) ** 0.25 * scale
        return Moments(
            float(np.linalg.norm(unit)) * scale,
            (float(flat.sum()), float(np.abs(flat).sum()), quartic),
        )


class ValueIndex:
    """The values of one step, to be found by their content."""

    def __init__(self, step: TrueStep, known: ValueIndex | None = None) -> None:
        """`known`: of the same step, with fewer values."""
        self.step = step
        self._moments: dict[int, Moments] = dict(known._moments) if known is not None else {}
        self._plain: dict[int, bool] = dict(known._plain) if known is not None else {}
        for value in step.values[len(self._moments) :]:
            self._moments[value.number] = measure(value.array)
            self._plain[value.number] = is_plain(value.array)
        self._by_size: dict[tuple[int, bool], list[tuple[float, int]]] = {}
        for value in step.values:
            key = (value.array.size, value.is_floating)
            self._by_size.setdefault(key, []).append((self._moments[value.number].norm, value.number))
        for found in self._by_size.values():
            found.sort()

    def is_plain(self, value: TrueValue) -> bool:
        return self._plain[value.number]

    def find(self, value: TrueValue, moments: Moments, tolerance: float) -> Iterator[TrueValue]:
        """The values of this step that have the content of a value of another one, the same order of elements first."""
        near = self._by_size.get((value.array.size, value.is_floating), [])
        room = moments.norm * 10 * tolerance + 1e-300
        low, high = moments.norm - room, moments.norm + room
        begin = bisect_left(near, (low, -1))
        proposed = []
        for norm, number in near[begin:]:
            if norm > high:
                break
            if moments.is_near(self._moments[number], tolerance):
                proposed.append(self.step.values[number])
        others = []
        for other in proposed:
            if is_same(other.array, value.array, tolerance):
                yield other
            else:
                others.append(other)
        for other in others:
            if is_laid_out(other.array, value.array, tolerance, allows_square=other.is_leaf and value.is_leaf):
                yield other

    def moments(self, value: TrueValue) -> Moments:
        return self._moments[value.number]


class Counterparts:
    """Both steps, and which value of one is which of the other."""

    def __init__(self, reference: TrueStep, candidate: TrueStep, known: Counterparts | None = None) -> None:
        """`known`: of the same steps, before calls in them were taken apart."""
        self.steps = {"reference": reference, "candidate": candidate}
        known_indexes: dict[str, ValueIndex] = known._indexes if known is not None else {}
        self._indexes: dict[str, ValueIndex] = {
            side: ValueIndex(step, known_indexes.get(side)) for side, step in self.steps.items()
        }
        self._found: dict[tuple[str, int], list[TrueValue]] = {}
        self.tolerance = max(TOLERANCE, _ROUNDED_UNITS * max(reference.coarseness, candidate.coarseness))
        """By what two truths of one value may differ."""
        rounded = _ROUNDED_UNITS * max((UNITS[value.dtype] for value in self._find_lone_tables()), default=0.0)
        if rounded > self.tolerance:
            self.tolerance = rounded
            self._found.clear()

    def _find_lone_tables(self) -> Iterator[TrueValue]:
        """Data that one run reads and the other has not: numbers of a program, that it wrote down in this precision and
        the other one in a finer one."""
        for side, step in self.steps.items():
            for leaf in step.leaves:
                is_table = not leaf.is_trained and UNITS.get(leaf.dtype, 1.0) < _FINE and step.leads_to_loss(leaf)
                if is_table and not is_round(leaf.array) and not self.exists(side, leaf):
                    yield leaf

    def of(self, side: str, value: TrueValue) -> list[TrueValue]:
        """The values of the other run that have this content. `side` is whose value it is."""
        found = self._found.get((side, value.number))
        if found is None:
            own, other = self._indexes[side], self._indexes[other_side(side)]
            found = list(other.find(value, own.moments(value), self.tolerance))
            if own.is_plain(value):
                found = [one for one in found if is_made_alike(own.step, value, other.step, one)]
            self._found[side, value.number] = found
        return found

    def exists(self, side: str, value: TrueValue) -> bool:
        return bool(self.of(side, value))

    def is_plain(self, side: str, value: TrueValue) -> bool:
        return self._indexes[side].is_plain(value)

    def moments(self, side: str, value: TrueValue) -> Moments:
        return self._indexes[side].moments(value)


def other_side(side: str) -> str:
    return "candidate" if side == "reference" else "reference"


def is_made_alike(first_step: TrueStep, first: TrueValue, second_step: TrueStep, second: TrueValue) -> bool:
    """Are both leaves, or made by the same operation? What is a leaf here may be computed there: a table of zeros."""
    makers = first_step.maker(first), second_step.maker(second)
    if makers[0] is None or makers[1] is None:
        return True
    return word_of(makers[0]) == word_of(makers[1])


def word_of(call: TrueCall) -> str:
    """What it does, in the words that all frameworks share: `add` for `add_`, `__add__` and `aten.add.Tensor`."""
    return common_word(call.framework, call.prefix, call.op)


def unlikeness(call: TrueCall, other: TrueCall) -> tuple[bool, bool, int]:
    """Small for one that does the same, in the same module, at about the same time."""
    return word_of(other) != word_of(call), other.module_path != call.module_path, abs(other.position - call.position)
