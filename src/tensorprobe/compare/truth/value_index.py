"""Which values of one run exist in the other?

Size, norm and sum propose; elements decide, in the same order, or after the axes of one are permuted. A value without
information of its own (zeros, one constant, small whole numbers) exists everywhere: it counts only if it was made by
the same operation.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from typing import Protocol

import numpy as np

from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.compare.truth.same_array import TOLERANCE, is_laid_out, is_plain, is_round, is_same, settle
from tensorprobe.replay.true_step import UNITS, Array, TrueStep, TrueValue

ZERO = 1e-11
"""A gradient that is smaller than this part of the largest one of the run is zero in exact arithmetic."""
ROUNDED_UNITS = 64.0
"""Where recorded results or rounded constants had to be taken, truths differ by so many of their roundings."""
FINE = 1e-6
_SMALL = 4
"""Of values with fewer numbers it is not worth knowing which are equal."""
ORDERS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_COMPARISONS = ORDERS | {
    *("logical_not", "logical_and", "logical_or", "logical_xor"),
    *("bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor"),
}
"""One mask is made by any of them: what is smaller, or what is not; what is seen by both, or hidden by one of them."""


@dataclass(frozen=True)
class Moments:
    """What permuting the elements of an array does not change."""

    norm: float
    sum: float
    absolute: float

    def times(self, factor: float) -> Moments:
        return Moments(self.norm * abs(factor), self.sum * factor, self.absolute * abs(factor))

    def is_near(self, other: Moments, tolerance: float) -> bool:
        bound = max(1e-6, 10 * tolerance) * max(self.absolute, self.norm)
        return abs(self.sum - other.sum) <= bound and abs(self.absolute - other.absolute) <= bound


def measure(array: Array) -> Moments:
    flat = settle(array).reshape(-1)
    flat = np.abs(flat) if flat.dtype.kind == "c" else flat.astype(np.float64, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(flat @ flat)
        if not 0 < square < np.inf:  # lost numbers are left out, very large and very small ones are measured in a unit
            flat = flat[np.isfinite(flat)]
            scale = float(np.abs(flat).max(initial=0.0)) or 1.0
            square = float(np.sum((flat / scale) ** 2)) * scale * scale
        return Moments(math.sqrt(square), float(flat.sum()), float(np.abs(flat).sum()))


class ValueIndex:
    """The values of one step, to be found by their content."""

    def __init__(self, step: TrueStep, known: ValueIndex | None = None) -> None:
        """`known`: of the same step, with fewer values."""
        self.step = step
        self._moments: dict[int, Moments] = dict(known._moments) if known is not None else {}
        self._plain: dict[int, bool] = dict(known._plain) if known is not None else {}
        self._contents: dict[int, int] = dict(known._contents) if known is not None else {}
        self._first: dict[int, int] = {}
        self._alike: dict[tuple[Moments, tuple[int, ...], bool, str | None], list[TrueValue]] = {}
        self._by_norm: dict[tuple[int, bool], list[tuple[float, int]]] = {}
        self._by_size: dict[tuple[int, bool], list[TrueValue]] = {}
        for value in step.values:
            self._by_size.setdefault((value.array.size, value.is_floating), []).append(value)

    def is_plain(self, value: TrueValue) -> bool:
        found = self._plain.get(value.number)
        if found is None:
            found = self._plain[value.number] = is_plain(value.array)
        return found

    def _near(self, key: tuple[int, bool]) -> list[tuple[float, int]]:
        """The values of one size by their norms; measured when they are asked for, which most never are."""
        if key not in self._by_norm:
            values = self._by_size.get(key, [])
            self._by_norm[key] = sorted((self.moments(value).norm, value.number) for value in values)
        return self._by_norm[key]

    def find(self, value: TrueValue, moments: Moments, tolerance: float) -> Iterator[TrueValue]:
        """The values of this step that have the content of a value of another one, the same order of elements first."""
        others, known = [], dict[int, bool]()
        for count, other in enumerate(self.propose(value, moments, tolerance)):
            content = self.content(other) if count >= _SMALL else other.number  # many weights are all ones
            if content not in known:
                known[content] = is_same(other.array, value.array, tolerance)
            if known[content]:
                yield other
            else:
                others.append(other)
        for other in others:
            if is_laid_out(other.array, value.array, tolerance, allows_square=other.is_leaf or value.is_leaf):
                yield other

    def propose(self, value: TrueValue, moments: Moments, tolerance: float) -> Iterator[TrueValue]:
        """Those that are as many, and as large, by the norm."""
        near = self._near((value.array.size, value.is_floating))
        room = moments.norm * 10 * tolerance + 1e-300
        begin = bisect_left(near, (moments.norm - room, -1))
        for norm, number in islice(near, begin, None):
            if norm > moments.norm + room:
                break
            if moments.is_near(self._moments[number], tolerance):
                yield self.step.values[number]

    @cached_property
    def noise(self) -> dict[int, TrueValue]:
        """The gradients that are zero in exact arithmetic, by their numbers."""
        sizes = {one: float(np.abs(one.array).max(initial=0.0)) for one in self.step.leaves if one.is_gradient}
        least = ZERO * max(sizes.values(), default=0.0)
        return {one.number: one for one, size in sizes.items() if size < least}

    def content(self, value: TrueValue) -> int:
        """The same for values that are equal bit for bit."""
        found = self._contents.get(value.number)
        if found is None:
            found = self._contents[value.number] = hash((value.array.dtype.str, value.array.tobytes()))
        return found

    def moments(self, value: TrueValue) -> Moments:
        found = self._moments.get(value.number)
        if found is None:
            found = self._moments[value.number] = measure(value.array)
        return found

    def first_like(self, value: TrueValue) -> int:
        """The number of the first value that anybody asked for and that is found in the same places as this one: with
        the same bits, in the same shape, made by an operation of the same kind. A loop that has come to rest gives
        thousands of them. Only where moments are equal are contents looked at."""
        found = self._first.get(value.number)
        if found is None:
            maker = self.step.maker(value)
            kind = self.moments(value), value.array.shape, value.is_leaf, None if maker is None else word_of(maker)
            alike = self._alike.setdefault(kind, [])
            others = (one for one in alike if self.content(one) == self.content(value))
            found = self._first[value.number] = next(others, value).number
            if found == value.number:
                alike.append(value)
        return found


class _Found:
    """Values as they are found, each looked for once, and not before it is asked for."""

    def __init__(self, search: Iterator[TrueValue]) -> None:
        self._search = search
        self._known: list[TrueValue] = []

    def has_any(self) -> bool:
        self._known += islice(self._search, 0 if self._known else 1)
        return bool(self._known)

    def all(self) -> list[TrueValue]:
        self._known += self._search
        return self._known


class Likeness(Protocol):
    """Which values of one run are in the other?"""

    def of(self, side: str, value: TrueValue) -> list[TrueValue]: ...

    def exists(self, side: str, value: TrueValue) -> bool: ...


class Counterparts:
    """Both steps, and which value of one is which of the other."""

    def __init__(
        self,
        reference: TrueStep,
        candidate: TrueStep,
        known: Counterparts | None = None,
        *,
        tolerance: float | None = None,
    ) -> None:
        """`known`: of the same steps, before calls in them were taken apart. `tolerance`: that of these steps, where
        not all of them is kept."""
        self.steps = {"reference": reference, "candidate": candidate}
        known_indexes: dict[str, ValueIndex] = known._indexes if known is not None else {}
        self._indexes: dict[str, ValueIndex] = {
            side: ValueIndex(step, known_indexes.get(side)) for side, step in self.steps.items()
        }
        self._found: dict[tuple[str, int], _Found] = {}
        """By a side, and the first of its values that are alike."""
        self._origins: dict[tuple[str, int], Set[int]] = {}
        self.tolerance = max(TOLERANCE, ROUNDED_UNITS * max(reference.coarseness, candidate.coarseness))
        """By what two truths of one value may differ."""
        self.lone_tables: tuple[TrueValue, ...] = ()
        """Data of one run that the other has not, but for rounding; where it counts for the tolerance."""
        if tolerance is not None:
            self.tolerance = tolerance
            return
        self.lone_tables = tuple(self._find_lone_tables())
        rounded = ROUNDED_UNITS * max((UNITS[value.dtype] for value in self.lone_tables), default=0.0)
        if rounded > self.tolerance:
            self.tolerance = rounded
            self._found.clear()

    def gradient_tolerance(self, reference: Iterable[TrueValue], candidate: Iterable[TrueValue]) -> float:
        """By what the gradients of these values of both runs may, relative to the larger one."""
        given = list(zip(self.steps.values(), (list(reference), list(candidate)), strict=True))
        rounding = max(
            (step.gradient_rounding.get(one.number, 0.0) for step, some in given for one in some), default=0.0
        )
        if not rounding:
            return self.tolerance
        gradients = (step.gradient_of(one) for step, values in given for one in values)
        largest = max((float(np.linalg.norm(one)) for one in gradients if one is not None), default=0.0)
        return max(self.tolerance, ROUNDED_UNITS * rounding / largest if largest else 0.0)

    def _find_lone_tables(self) -> Iterator[TrueValue]:
        """Data that one run reads and the other has not: numbers of a program, that it wrote down in this precision and
        the other one in a finer one."""
        for side, step in self.steps.items():
            for leaf in step.leaves:
                is_data = not leaf.is_trained and not leaf.is_gradient
                is_table = is_data and UNITS.get(leaf.dtype, 1.0) < FINE and step.leads_to_loss(leaf)
                if is_table and not is_round(leaf.array) and not self.exists(side, leaf):
                    yield leaf

    def of(self, side: str, value: TrueValue) -> list[TrueValue]:
        """The values of the other run that have this content. `side` is whose value it is."""
        return self._find(side, value).all()

    def exists(self, side: str, value: TrueValue) -> bool:
        return self._find(side, value).has_any()

    def has_near(self, side: str, value: TrueValue, tolerance: float) -> bool:
        """Has the other run these numbers in this shape, as near as that?"""
        near = self._indexes[other_side(side)].propose(value, self.moments(side, value), tolerance)
        return any(one.array.shape == value.array.shape and is_same(one.array, value.array, tolerance) for one in near)

    def _find(self, side: str, value: TrueValue) -> _Found:
        key = side, self._indexes[side].first_like(value)
        if key not in self._found:
            self._found[key] = _Found(self._search(side, value))
        return self._found[key]

    def _search(self, side: str, value: TrueValue) -> Iterator[TrueValue]:
        own, other = self._indexes[side], self._indexes[other_side(side)]
        found = other.find(value, own.moments(value), self.tolerance)
        if value.array.dtype.kind == "b":  # what is masked here is what is kept there
            inverted = replace(value, array=~value.array)
            found = chain(found, other.find(inverted, measure(inverted.array), self.tolerance))
        if value.number in own.noise:
            found = chain(found, (one for one in other.noise.values() if one.array.shape == value.array.shape))
        if not own.is_plain(value):
            return found
        return (
            one
            for one in found
            if is_made_alike(own.step, value, other.step, one) or self._has_same_origins(side, value, one)
        )

    def _has_same_origins(self, side: str, value: TrueValue, partner: TrueValue) -> bool:
        """Are both a single number that is computed of the same leaves, as a count of tokens is, in whatever way?"""
        if value.array.size != 1:
            return False
        own, others = (self._find_origins(*one) for one in ((side, value.number), (other_side(side), partner.number)))
        leaves = self.steps[side].values
        found = [{one.number for one in self.of(side, leaves[number])} for number in own]
        return bool(own) and all(others & one for one in found) and others <= set().union(*found)

    def _find_origins(self, side: str, number: int) -> Set[int]:
        """The leaves that a value is computed of."""
        if (side, number) not in self._origins:
            step = self.steps[side]
            before = step.find_before({number})
            self._origins[side, number] = frozenset(leaf.number for leaf in step.leaves if leaf.number in before)
        return self._origins[side, number]

    def find_observed(self) -> dict[str, set[int]]:
        """The values that two steps are held against each other by, and those of the other run that have their content:
        leaves, losses and ends."""
        found: dict[str, set[int]] = {side: set() for side in self.steps}
        for side, step in self.steps.items():
            for value in step.values:
                if value.is_leaf or value.is_root or step.is_end(value):
                    found[side].add(value.number)
                    found[other_side(side)].update(one.number for one in self.of(side, value))
        return found

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
    words = {word_of(maker) for maker in makers if maker is not None}
    is_mask = first.array.dtype.kind == second.array.dtype.kind == "b"
    return len(words) == 1 or (is_mask and words <= _COMPARISONS)
