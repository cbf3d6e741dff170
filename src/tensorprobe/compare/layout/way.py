"""What ranks compute in another way than the reference: from what both have, through calls that the reference has not,
up to the loss. A mistake in there shows in what goes in together, and in the numbers that say which part a rank has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tensorprobe.compare.layout.difference import Tracer
from tensorprobe.compare.layout.pool import Known, Steps
from tensorprobe.compare.layout.relation import Relation
from tensorprobe.replay.true_step import TrueCall, TrueValue

Bounds = tuple[int, int]
_BOUND_WORDS = ("begins", "ends")


@dataclass(frozen=True)
class Taken:
    """Something that the reference has, and that a call on the way takes."""

    call: TrueCall
    slot: str
    value: TrueValue
    relation: Relation


@dataclass(frozen=True)
class WrongPlace:
    """A number that says on some ranks where their part of a value begins or ends, and on others does not."""

    call: TrueCall
    slot: str
    known: Known
    bound: str
    """`begins` or `ends`"""
    numbers: dict[int, Bounds]
    """For each rank where it does not: the number, and where its part begins or ends."""


class Way:
    """All ranks of the candidate."""

    def __init__(self, candidate: Steps, tracer: Tracer) -> None:
        self._candidate = candidate
        self._tracer = tracer
        self._found: dict[int, tuple[list[TrueCall], list[Taken]]] = {}

    def find_taken(self, rank: int) -> list[Taken]:
        """What the way of a rank begins with, the first calls first."""
        return self._follow(rank)[1]

    def find_wrong_place(self, rank: int) -> WrongPlace | None:
        """Of the calls on the way of this rank, the first one with such a number."""
        numbers = self._collect_numbers()
        for call in self._follow(rank)[0]:
            takes_places = any(self._value(rank, number).array.dtype.kind in "iu" for number in call.inputs.values())
            for slot in call.arguments if takes_places else ():
                found = self._hold(call, slot, numbers.get((call.name, slot), {}))
                if found is not None:
                    return found
        return None

    def _hold(self, call: TrueCall, slot: str, numbers: dict[int, int]) -> WrongPlace | None:
        if len(set(numbers.values())) < 2:
            return None
        found: list[WrongPlace] = []
        for known, bounds in self._collect_bounds(numbers):
            for which, word in enumerate(_BOUND_WORDS):
                held = {rank: (number, bounds[rank][which]) for rank, number in numbers.items()}
                wrong = {rank: both for rank, both in held.items() if both[0] != both[1]}
                found.append(WrongPlace(call, slot, known, word, wrong))
        nearest = min(found, key=lambda one: len(one.numbers), default=None)
        is_wrong = nearest is not None and 0 < len(nearest.numbers) < len(numbers)
        return nearest if is_wrong else None

    def _collect_numbers(self) -> dict[tuple[str, str], dict[int, int]]:
        """The whole numbers that calls on the way are given, on each rank."""
        found: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        for rank in self._candidate:
            for call in self._follow(rank)[0]:
                for slot, argument in call.arguments.items():
                    if isinstance(argument, int) and not isinstance(argument, bool):
                        found[call.name, slot][rank] = argument
        return found

    def _collect_bounds(self, ranks: dict[int, int]) -> Iterator[tuple[Known, dict[int, Bounds]]]:
        """Of each value that is cut into parts one behind the other: where that of each rank begins and ends."""
        found: dict[tuple[int, int], dict[int, Bounds]] = defaultdict(dict)
        knowns: dict[tuple[int, int], Known] = {}
        for rank in ranks:
            for taken in self.find_taken(rank):
                for dim, places in taken.relation.part.places if taken.value.is_floating else ():
                    if np.array_equal(places, np.arange(places[0], places[0] + len(places))):
                        key = id(taken.relation.known.array), dim
                        found[key][rank] = int(places[0]), int(places[-1]) + 1
                        knowns[key] = taken.relation.known
        for key, bounds in found.items():
            if bounds.keys() == ranks.keys() and len(set(bounds.values())) > 1:
                yield knowns[key], bounds

    def _follow(self, rank: int) -> tuple[list[TrueCall], list[Taken]]:
        if rank not in self._found:
            calls, taken = dict[str, TrueCall](), list[Taken]()
            waiting = [self._candidate[rank].step.maker(value) for value in self._candidate[rank].step.roots]
            while waiting:
                call = waiting.pop()
                if call is None or call.name in calls:
                    continue
                calls[call.name] = call
                for slot, number in call.inputs.items():
                    value = self._value(rank, number)
                    relation = self._relation(rank, value)
                    if relation is not None:
                        taken.append(Taken(call, slot, value, relation))
                    else:
                        waiting.append(self._candidate[rank].step.maker(value))
            ordered = sorted(calls.values(), key=lambda call: call.position)
            self._found[rank] = ordered, sorted(taken, key=lambda one: one.call.position)
        return self._found[rank]

    def _relation(self, rank: int, value: TrueValue) -> Relation | None:
        """What it is of the reference. Whole numbers, and what has no information of its own, are known by what they
        are made of."""
        is_vague = not value.is_floating or self._tracer.is_plain(rank, value)
        if value.array.size < 2 or (not value.is_leaf and is_vague):
            return None
        return self._tracer.relation(rank, value)

    def _value(self, rank: int, number: int) -> TrueValue:
        return self._candidate[rank].step.values[number]
