"""What the statistics of a tensor tell of its numbers: enough to find the same tensor in another program."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

from tensorprobe.compare.measure.statistic_measure import sketched_distance
from tensorprobe.store.slot import TensorSlot


class Content(NamedTuple):
    """What is told of a tensor, and of the same numbers in another order, or each of them several times."""

    kind: str
    size: float
    """The root of the mean of the squares; of a mask, how much of it is the rarer of its two numbers."""
    mean: float = 0.0
    largest: float = 0.0
    smallest: float = 0.0


_NUMBERS, _MASK, _INFINITE = "numbers", "mask", "infinite"
_FAR_BELOW = -1e4
"""What is added to what is to vanish in a softmax."""
_SKETCHED = 4
"""A sketch may tell of so many times the distance."""
_AMPLE = 1.5
"""What is near is looked for a little farther off: the other one may be larger, and allows more."""


def read_content(slot: TensorSlot) -> Content | None:
    """None where statistics do not tell enough."""
    numbers, count = (slot.norm, slot.mean, slot.max, slot.min), slot.element_count
    if None in numbers or not count or slot.has_nan:
        return None
    norm, mean, largest, smallest = (float(number or 0.0) for number in numbers)
    if slot.has_inf:
        share = (slot.inf_count or 0) / count
        is_mask = largest == 0.0
        return Content(_MASK, min(share, 1 - share)) if is_mask else Content(_INFINITE, share, largest=largest)
    size = norm / math.sqrt(count)
    if _is_mask(size, mean, largest, smallest):
        share = (mean - smallest) / (largest - smallest)
        return Content(_MASK, min(share, 1 - share))
    return Content(_NUMBERS, size, mean, largest, smallest)


def _is_mask(size: float, mean: float, largest: float, smallest: float) -> bool:
    """Are there two numbers in it only, one of which is 0 and the other true, or far below all others?"""
    if (smallest, largest) == (0.0, 1.0):
        return math.isclose(size, math.sqrt(mean), rel_tol=1e-5)
    is_additive = largest == 0.0 and smallest <= _FAR_BELOW
    return is_additive and math.isclose(size, math.sqrt(abs(mean)) * math.sqrt(-smallest), rel_tol=1e-5)


class Contents:
    """Tensors, to be found by what is told of them. `sees_order`: one that lies in another order is another one."""

    def __init__(self, slots: Iterable[TensorSlot], tolerance: float, *, sees_order: bool = False) -> None:
        read = ((read_content(slot), slot) for slot in slots)
        known = [(content, slot) for content, slot in read if content is not None]
        found = known if sees_order else list(dict(known).items())
        self._orders = [(key, sorted(found, key=key)) for key in (_by_size, _by_largest)]
        """Norms leave all that they give of one size, and a softmax all of one largest number: but not both."""
        self._tolerance = tolerance
        self._sees_order = sees_order

    def has(self, slot: TensorSlot) -> bool:
        wanted = read_content(slot)
        return wanted is not None and any(
            _is_same(content, wanted, self._tolerance) and not (self._sees_order and self._is_turned(slot, found))
            for content, found in self._list_near(wanted)
        )

    def _list_near(self, wanted: Content) -> list[tuple[Content, TensorSlot]]:
        """Those among which it is, if it is there."""
        reaches = wanted.size, _span(wanted)
        ranges = []
        for (key, known), size in zip(self._orders, reaches, strict=True):
            kind, middle = key((wanted, None))
            reach = _AMPLE * self._tolerance * size
            start = bisect_left(known, (kind, middle - reach), key=key)
            end = bisect_right(known, (kind, middle + reach), start, key=key)
            ranges.append((end - start, start, known))
        count, start, known = min(ranges, key=itemgetter(0))
        return known[start : start + count]

    def _is_turned(self, slot: TensorSlot, other: TensorSlot) -> bool:
        allowed = _SKETCHED * self._tolerance * abs(float(slot.norm or 0.0))
        return slot.shape == other.shape and sketched_distance(slot, other) > allowed


def _by_size(known: tuple[Content, TensorSlot | None]) -> tuple[str, float]:
    return known[0].kind, known[0].size


def _by_largest(known: tuple[Content, TensorSlot | None]) -> tuple[str, float]:
    return known[0].kind, known[0].largest


def _span(content: Content) -> float:
    return max(abs(content.largest), abs(content.smallest))


def _is_same(first: Content, second: Content, tolerance: float) -> bool:
    span = max(_span(first), _span(second))
    size = max(first.size, second.size)
    return (
        abs(first.size - second.size) <= tolerance * size
        and abs(first.mean - second.mean) <= tolerance * size
        and abs(first.largest - second.largest) <= tolerance * span
        and abs(first.smallest - second.smallest) <= tolerance * span
    )
