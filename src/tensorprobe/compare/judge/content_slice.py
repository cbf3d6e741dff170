"""Where two programs that are written differently part, by the statistics of what they compute.

Their calls cannot be paired by name, but their values can be found: a tensor of one run that has the extremes, the mean
and the size of one of the other is that one, whatever call made it and however it is laid out. From a result that
differs the values that the other run has not are followed back; where they begin, what goes in is in both runs, and
what comes out is in one. What is only written otherwise comes to values that both have, and is not on that way.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tensorprobe.compare.judge.step_result import STRICT, find_differing, find_loss, find_tolerance
from tensorprobe.model.name import BACKWARD, FORWARD
from tensorprobe.run.call import Call
from tensorprobe.run.flow import Flow
from tensorprobe.run.step import Run
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
_FEW = 4
"""Where rounding alone is seen, there are many places."""
_FAR_BELOW = -1e4
"""What is added to what is to vanish in a softmax."""


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
    square = norm**2 / count
    if _is_mask(square, mean, largest, smallest):
        share = (mean - smallest) / (largest - smallest)
        return Content(_MASK, min(share, 1 - share))
    return Content(_NUMBERS, math.sqrt(square), mean, largest, smallest)


def _is_mask(square: float, mean: float, largest: float, smallest: float) -> bool:
    """Are there two numbers in it only, one of which is 0 and the other true, or far below all others?"""
    if (smallest, largest) == (0.0, 1.0):
        return math.isclose(square, mean, rel_tol=1e-5)
    return largest == 0.0 and smallest <= _FAR_BELOW and math.isclose(square, mean * smallest, rel_tol=1e-5)


class Contents:
    """The tensors of some calls, to be found by what is told of them."""

    def __init__(self, slots: Iterable[TensorSlot], tolerance: float) -> None:
        self._sorted = sorted({content for slot in slots if (content := read_content(slot)) is not None})
        self._tolerance = tolerance

    def has(self, slot: TensorSlot) -> bool:
        wanted = read_content(slot)
        if wanted is None:
            return False
        reach = self._tolerance * wanted.size
        place = bisect_left(self._sorted, (wanted.kind, wanted.size - reach), key=lambda one: one[:2])
        while place < len(self._sorted) and self._sorted[place][:2] <= (wanted.kind, wanted.size + reach):
            if is_same_content(self._sorted[place], wanted, self._tolerance):
                return True
            place += 1
        return False


def is_same_content(first: Content, second: Content, tolerance: float) -> bool:
    span = max(abs(first.largest), abs(first.smallest), abs(second.largest), abs(second.smallest))
    size = max(first.size, second.size)
    return (
        abs(first.size - second.size) <= tolerance * size
        and abs(first.mean - second.mean) <= tolerance * size
        and abs(first.largest - second.largest) <= tolerance * span
        and abs(first.smallest - second.smallest) <= tolerance * span
    )


@dataclass(frozen=True)
class Parting:
    """Where two runs part; None for a side that has no such call."""

    reference: Call | None
    candidate: Call | None
    because: str
    is_shared: bool = False
    """Are both calls given the same?"""
    beginnings: frozenset[Call] = frozenset()
    """All calls, of both runs, that make something else of the same."""
    is_given_other: bool = False
    """Is the candidate's given a tensor that no call made, and the reference has not?"""


class _Side:
    """One run, and what the other one has."""

    def __init__(self, run: Run, other: Run) -> None:
        self.run = run
        self.flow = Flow(run)
        self.forward, self.backward = (list(_iter_own(run, direction)) for direction in (FORWARD, BACKWARD))
        self.other_values, self.other_gradients = (
            [slot for call in _iter_own(other, direction) for slot in call.tensors] for direction in (FORWARD, BACKWARD)
        )


def _iter_own(run: Run, direction: str) -> Iterator[Call]:
    return (call for call in run.calls if call.direction == direction and call.kind == "api" and call.caller is None)


class ContentFinder:
    """Two runs, and what of each is in the other."""

    def __init__(self, reference: Run, candidate: Run) -> None:
        self._runs = reference, candidate
        self._sides = _Side(reference, candidate), _Side(candidate, reference)
        self._tolerance = find_tolerance(reference, candidate)

    def find_parting(self) -> Parting | None:
        """The first call of the candidate, and of the reference, that makes what the other has not of what both
        have."""
        losses = [find_loss(run) for run in self._runs]
        if not all(side.forward for side in self._sides) or losses[0] is None or losses[1] is None:
            return None
        if Contents([losses[0]], self._tolerance / STRICT).has(losses[1]):
            return self._part_backward()
        is_same = Contents([losses[0]], self._tolerance).has(losses[1])
        found = self._part_forward(losses, self._tolerance / STRICT)
        if is_same or (found.parting is not None and found.parting.is_shared and found.most <= _FEW):
            return found.parting
        return self._part_forward(losses, self._tolerance).parting

    def _part_forward(self, losses: Sequence[TensorSlot | None], tolerance: float) -> _Found:
        beginnings = []
        for side, loss in zip(self._sides, losses, strict=True):
            last = [call for call in side.forward if any(slot is loss for slot in call.tensors)]
            beginnings.append(_ForwardSlice(side, tolerance).find_beginnings(last))
        return _Found(_pair(beginnings, tolerance), max(map(len, beginnings)))

    def _part_backward(self) -> Parting | None:
        differing = find_differing(*self._runs)
        slices = [_GradientSlice(side, self._tolerance) for side in self._sides]
        return _pair([one.find_beginnings(last) for one, last in zip(slices, differing, strict=True)], self._tolerance)


class _Found(NamedTuple):
    parting: Parting | None
    most: int
    """So many places begin in one of the runs."""


@dataclass(frozen=True, eq=False)
class _Beginning:
    call: Call
    given: tuple[TensorSlot, ...]
    """What goes in, and the other run has, too."""
    because: str
    is_of_leaves: bool = False
    """Only of what no call of the program made."""
    is_given_other: bool = False
    """Of something that the other run has not."""


class _ForwardSlice:
    """The way back from a value that the other run has not."""

    def __init__(self, side: _Side, tolerance: float) -> None:
        self._side = side
        self._others = Contents(side.other_values, tolerance)

    def find_beginnings(self, last: Iterable[Call]) -> list[_Beginning]:
        """Of what these calls compute."""
        waiting, seen = list(last), set[str]()
        found: list[_Beginning] = []
        while waiting:
            call = waiting.pop()
            if call.name not in seen:
                seen.add(call.name)
                unknown = self.list_unknown(call)
                makers = self.list_makers(unknown)
                waiting += makers
                if not makers:
                    found.append(self._begin(call, unknown))
        return found

    def list_unknown(self, call: Call) -> list[TensorSlot]:
        """What it is given, and the other run has not."""
        return [slot for slot in call.tensors if slot.is_input and not self._others.has(slot)]

    def list_makers(self, slots: Iterable[TensorSlot]) -> list[Call]:
        return [maker for slot in slots if (maker := self._side.flow.producer(slot)) is not None]

    def _begin(self, call: Call, unknown: Sequence[TensorSlot]) -> _Beginning:
        because = "what goes in is the same, and what comes out is not"
        if unknown:
            because = f"{unknown[0].slot} is not in the other run"
        given = [slot for slot in call.tensors if slot.is_input]
        known = tuple(slot for slot in given if all(slot is not one for one in unknown))
        return _Beginning(call, known, because, not self.list_makers(given), bool(unknown))


class _GradientSlice:
    """The way back from a gradient that the other run has not."""

    def __init__(self, side: _Side, tolerance: float) -> None:
        self._side = side
        self._others = Contents(side.other_gradients, tolerance)
        self._forward = _ForwardSlice(side, tolerance / STRICT)

    def find_beginnings(self, differing: Sequence[TensorSlot]) -> list[_Beginning]:
        flow, wanted = self._side.flow, set(map(id, differing))
        waiting = [call for call in self._side.backward if any(id(slot) in wanted for slot in call.tensors)]
        seen, found = set[str](), list[_Beginning]()
        while waiting:
            call = waiting.pop()
            if call.name in seen:
                continue
            seen.add(call.name)
            arriving = [slot for slot in call.tensors if slot.is_input]
            if all(map(self._others.has, arriving)):
                found += self._begin(call, arriving)
                continue
            shares = flow.contributions(call)
            unknown = [maker for maker, slot in shares if not self._others.has(slot)]
            waiting += unknown
            if not unknown:
                given = tuple(slot for _, slot in shares)
                found.append(_Beginning(call, given, "other gradients arrive at it than in the other run"))
        return found

    def _begin(self, call: Call, arriving: Sequence[TensorSlot]) -> list[_Beginning]:
        """A gradient is made of what the forward was given, too."""
        forward = self._side.flow.forward_of(call)
        makers = [] if forward is None else self._forward.list_makers(self._forward.list_unknown(forward))
        if makers:
            return self._forward.find_beginnings(makers)
        because = "the gradient that arrives is the same, and the one that it gives back is not"
        return [_Beginning(call, tuple(arriving), because)]


def _pair(sides: Sequence[Sequence[_Beginning]], tolerance: float) -> Parting | None:
    """First those that are given the same in both runs; what is made of leaves alone may be a table."""
    sides = [sorted(beginnings, key=lambda one: one.call.position) for beginnings in sides]
    reference, candidate = sides
    beginnings = frozenset(one.call for beginnings in sides for one in beginnings)
    pairs = [(one, other) for other in candidate for one in reference if _share(one, other, tolerance)]
    for is_of_leaves in (False, True):
        for one, other in pairs:
            if one.is_of_leaves <= is_of_leaves and other.is_of_leaves <= is_of_leaves:
                return Parting(one.call, other.call, other.because, True, beginnings, other.is_given_other)
    first, second = map(_choose, sides)
    named = second or first
    if named is None:
        return None
    calls = [None if one is None else one.call for one in (first, second)]
    return Parting(calls[0], calls[1], named.because, False, beginnings, named.is_given_other)


def _choose(beginnings: Sequence[_Beginning]) -> _Beginning | None:
    return next(iter(sorted(beginnings, key=lambda one: one.is_of_leaves)), None)


def _share(one: _Beginning, other: _Beginning, tolerance: float) -> bool:
    known = Contents(one.given, tolerance)
    return any(map(known.has, other.given))
