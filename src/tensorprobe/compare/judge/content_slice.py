"""Where two programs that are written differently part, by the statistics of what they compute.

Their calls cannot be paired by name, but their values can be found: a tensor of one run that has the extremes, the mean
and the size of one of the other is that one, whatever call made it and however it is laid out. From a result that
differs the values that the other run has not are followed back; where they begin, what goes in is in both runs, and
what comes out is in one. What is only written otherwise comes to values that both have, and is not on that way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tensorprobe.compare.judge.content import Contents
from tensorprobe.compare.judge.joined_run import join_parts
from tensorprobe.compare.judge.own_record import list_own
from tensorprobe.compare.judge.step_result import (
    STRICT,
    find_differing,
    find_lone_ends,
    find_loss_error,
    find_losses,
    find_tolerance,
)
from tensorprobe.model.name import BACKWARD, FORWARD
from tensorprobe.run.call import Call
from tensorprobe.run.flow import Flow
from tensorprobe.run.step import Run
from tensorprobe.store.slot import TensorSlot

_FEW = 4
"""Where rounding alone is seen, there are many places."""
_LEAST_SHARE = 0.25
"""Of the parameters of one model: those that are joined in one run are in other tensors in the other."""


@dataclass(frozen=True)
class Parting:
    """Where two runs part; None for a side that has no such call."""

    reference: Call | None
    candidate: Call | None
    because: str
    is_shared: bool = False
    """Are both calls given the same?"""
    is_given_other: bool = False
    """Is the candidate's given a tensor that no call made, and the reference has not?"""


class _Side:
    """One run, and what the other one has."""

    def __init__(self, run: Run, other: Run) -> None:
        self.run = run
        self.flow = Flow(run)
        self.forward, self.backward = (list_own(run, direction) for direction in (FORWARD, BACKWARD))
        self.other_values, self.other_gradients = (
            [slot for call in list_own(other, direction) for slot in call.tensors] for direction in (FORWARD, BACKWARD)
        )

    def find_shared_parameters(self, tolerance: float) -> float:
        """How many of its parameters the other run has, as a share. Not by those that are all zeros or ones, as others
        are, too."""
        others = Contents(self.other_values, tolerance)
        taken = [slot for call in self.forward for slot in call.tensors if slot.is_input and slot.max != slot.min]
        own = [slot for slot in taken if slot.parameter or (slot.requires_grad and self.flow.producer(slot) is None)]
        return sum(map(others.has, own)) / len(own) if own else 0.0

    def is_trained(self, call: Call) -> bool:
        """Does it depend on a parameter?"""
        return call.name in self._trained

    @cached_property
    def _trained(self) -> set[str]:
        found: set[str] = set()
        for call in self.forward:
            given = [slot for slot in call.tensors if slot.is_input]
            makers = (self.flow.producer(slot) for slot in given)
            if any(slot.parameter for slot in given) or any(one is not None and one.name in found for one in makers):
                found.add(call.name)
        return found


class ContentFinder:
    """Two runs, and what of each is in the other."""

    def __init__(self, reference: Run, candidate: Run) -> None:
        self._runs = reference, candidate
        joined = join_parts(reference), join_parts(candidate)
        self._sides = _Side(joined[0], joined[1]), _Side(joined[1], joined[0])
        self._tolerance = find_tolerance(reference, candidate)

    def find_parting(self) -> Parting | None:
        """The first call of the candidate, and of the reference, that makes what the other has not of what both
        have."""
        if not all(side.forward for side in self._sides):
            return None
        if not self._has_same_loss(self._tolerance / STRICT):
            found = self._part_forward(self._tolerance / STRICT)
            is_clear = found.parting is not None and found.parting.is_shared and found.most <= _FEW
            is_certain = is_clear or self._has_same_loss(self._tolerance)
            return found.parting if is_certain else self._part_forward(self._tolerance).parting
        slices = [_GradientSlice(side, self._tolerance) for side in self._sides]
        parting = self._pair([one.find_beginnings(last) for one, last in zip(slices, self._differing, strict=True)])
        return parting or self._part_forward(self._tolerance).parting

    @property
    def is_one_model(self) -> bool:
        """Are parameters of each run in the other?"""
        return all(side.find_shared_parameters(self._tolerance) >= _LEAST_SHARE for side in self._sides)

    def is_beginning(self, call: Call) -> bool:
        """Does it make what the other run has not of what both have, also by the order of numbers alone?"""
        return call.name in self._beginnings[call in self._runs[1].calls]

    @cached_property
    def _beginnings(self) -> list[set[str]]:
        found = []
        for side, last, differing in zip(self._sides, self._last_calls, self._differing, strict=True):
            forward = _ForwardSlice(side, self._tolerance / STRICT, sees_order=True).find_beginnings(last)
            backward = _GradientSlice(side, self._tolerance, sees_order=True).find_beginnings(differing)
            found.append({one.call.name for one in (*forward, *backward) if not one.is_table})
        return found

    @cached_property
    def _differing(self) -> tuple[list[TensorSlot], list[TensorSlot]]:
        return find_differing(*self._runs)

    @cached_property
    def _last_calls(self) -> list[list[Call]]:
        """That make what is not the same in the end: the loss, else what nobody takes."""
        names = [{call.name for call, _ in find_losses(run)} for run in self._runs]
        if self._has_same_loss(self._tolerance / STRICT):
            names = list(find_lone_ends(*self._runs))
        return [
            [call for call in side.forward if call.name in wanted]
            for side, wanted in zip(self._sides, names, strict=True)
        ]

    @cached_property
    def _loss_error(self) -> float:
        return find_loss_error(*self._runs) or 0.0

    def _has_same_loss(self, tolerance: float) -> bool:
        return self._loss_error <= tolerance

    def _part_forward(self, tolerance: float) -> _Found:
        slices = [_ForwardSlice(side, tolerance) for side in self._sides]
        beginnings = [one.find_beginnings(last) for one, last in zip(slices, self._last_calls, strict=True)]
        return _Found(self._pair(beginnings), max(map(len, beginnings)))

    def _pair(self, sides: Sequence[Sequence[_Beginning]]) -> Parting | None:
        return _pair(sides, self._tolerance)


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
    is_table: bool = False
    """Does it depend on no parameter? A table, a mask or the data may be made in another way."""
    is_given_other: bool = False
    """Of something that the other run has not."""


class _ForwardSlice:
    """The way back from a value that the other run has not."""

    def __init__(self, side: _Side, tolerance: float, *, sees_order: bool = False) -> None:
        self._side = side
        self._others = Contents(side.other_values, tolerance, sees_order=sees_order)

    def find_beginnings(self, last: Iterable[Call]) -> list[_Beginning]:
        """Of what these calls compute."""
        waiting, seen, found = list(last), set[str](), list[_Beginning]()
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
        because = "the inputs are the same, but the results differ"
        if unknown:
            because = f"{unknown[0].slot} does not occur in the other run"
        given = [slot for slot in call.tensors if slot.is_input]
        known = tuple(slot for slot in given if all(slot is not one for one in unknown))
        return _Beginning(call, known, because, not self._side.is_trained(call), bool(unknown))


class _GradientSlice:
    """The way back from a gradient that the other run has not."""

    def __init__(self, side: _Side, tolerance: float, *, sees_order: bool = False) -> None:
        self._side = side
        self._others = Contents(side.other_gradients, tolerance, sees_order=sees_order)
        self._forward = _ForwardSlice(side, tolerance / STRICT, sees_order=sees_order)

    def find_beginnings(self, differing: Sequence[TensorSlot]) -> list[_Beginning]:
        flow, wanted = self._side.flow, set(map(id, differing))
        waiting = [call for call in self._side.backward if any(id(slot) in wanted for slot in call.tensors)]
        seen, found, makers = set[str](), list[_Beginning](), list[Call]()
        while waiting:
            call = waiting.pop()
            if call.name in seen:
                continue
            seen.add(call.name)
            arriving = [slot for slot in call.tensors if slot.is_input]
            if all(map(self._others.has, arriving)):
                given_otherwise = self._list_makers(call)
                makers += given_otherwise
                if not given_otherwise:
                    because = "it receives the same gradient, but returns a different one"
                    found.append(_Beginning(call, tuple(arriving), because))
                continue
            shares = flow.contributions(call)
            unknown = [maker for maker, slot in shares if not self._others.has(slot)]
            waiting += unknown
            if not unknown:
                given = tuple(slot for _, slot in shares)
                found.append(_Beginning(call, given, "it receives different gradients than in the other run"))
        return found + self._forward.find_beginnings(makers)

    def _list_makers(self, call: Call) -> list[Call]:
        """A gradient is made of what the forward was given, too: who made what the other run has not."""
        forward = self._side.flow.forward_of(call)
        return [] if forward is None else self._forward.list_makers(self._forward.list_unknown(forward))


def _pair(sides: Sequence[Sequence[_Beginning]], tolerance: float) -> Parting | None:
    """First those that are given the same in both runs; what is made of leaves alone may be a table."""
    sides = [sorted(beginnings, key=lambda one: one.call.position) for beginnings in sides]
    reference, candidate = sides
    given = [Contents(one.given, tolerance) for one in reference]
    pairs = [
        (one, other)
        for other in candidate
        for one, known in zip(reference, given, strict=True)
        if any(map(known.has, other.given))
    ]
    for is_table in (False, True):
        for one, other in pairs:
            if one.is_table <= is_table and other.is_table <= is_table:
                return Parting(one.call, other.call, other.because, True, other.is_given_other)
    first, second = map(_choose, sides)
    named = second or first
    if named is None:
        return None
    calls = [None if one is None else one.call for one in (first, second)]
    return Parting(calls[0], calls[1], named.because, False, named.is_given_other)


def _choose(beginnings: Sequence[_Beginning]) -> _Beginning | None:
    return next(iter(sorted(beginnings, key=lambda one: one.is_table)), None)
