"""A value through which a difference goes: with the reference's in its place, the candidate computes more of what the
reference computes, or its loss. What does not lead there is behind the difference, where what is only written otherwise
looks unlike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice

import numpy as np

from tensorprobe.compare.truth.difference import Difference
from tensorprobe.compare.truth.effect import Trial, find_place
from tensorprobe.compare.truth.observable import Observables
from tensorprobe.compare.truth.same_array import permutations
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.replay.true_step import Array, TrueStep, TrueValue

_MAX_TRIED = 4
_MAX_LOOKED_AT = 64
"""Of the values behind an exchanged one, so many say whether it belongs there."""


@dataclass(frozen=True)
class Cut:
    """What one run has in the place of a value of the other."""

    reference: TrueValue
    candidate: TrueValue

    @property
    def starts(self) -> Mapping[str, list[TrueValue]]:
        return {"reference": [self.reference], "candidate": [self.candidate]}

    def is_behind(self, one: Difference, steps: Mapping[str, TrueStep]) -> bool:
        """Does a call of this difference lead to it?"""
        return any(
            call is not None and not self._find_before(side, step).isdisjoint(call.outputs.values())
            for side, step in steps.items()
            for call in [one.call(side)]
        )

    def _find_before(self, side: str, step: TrueStep) -> Set[int]:
        numbers = {value.number for value in self.starts[side]}
        return numbers | step.find_before(numbers)


def find_cut(counterparts: Counterparts, observed: Observables, trial: Trial) -> Cut | None:
    """The first one, if there is any."""
    candidate = counterparts.steps["candidate"]
    unshared: Set[int] | None = None
    tries = ((cut, content) for cut in _CutFinder(counterparts, observed).cuts() for content in _lay_out(cut))
    for cut, content in islice(tries, _MAX_TRIED):
        place = find_place(cut.candidate, candidate)
        if place is not None:
            behind = _find_behind(cut.candidate, candidate)
            unshared = _find_unshared(counterparts) if unshared is None else unshared
            again = trial.execute({place: content}, behind)
            if _comes_nearer(counterparts, again, behind, unshared) or trial.is_healed(again):
                return cut
    return None


def _find_behind(value: TrueValue, step: TrueStep) -> list[int]:
    """The numbers on the way from a value to the loss, the first ones, as they are computed; of a call that was taken
    apart what it returns: only that is computed again."""
    found, near = {value.number}, list[int]()
    for call in sorted(step.calls.values(), key=lambda call: call.position):
        if call.inside is None and not found.isdisjoint(call.inputs.values()):
            found.update(call.outputs.values())
            made = (step.values[number] for number in call.outputs.values())
            near += [one.number for one in made if one.is_floating and step.leads_to_loss(one)]
            if len(near) >= _MAX_LOOKED_AT:
                break
    return near


def _comes_nearer(counterparts: Counterparts, again: TrueStep, behind: Sequence[int], unshared: Set[int]) -> bool:
    """Is something of the reference computed now that the candidate had nowhere, on a way to the loss on which nothing
    is shared (`unshared`), and all that it had before? What is put in and then only moved is what the reference has."""
    reference, before = counterparts.steps["reference"], counterparts.steps["candidate"]
    after = Counterparts(reference, again, tolerance=counterparts.tolerance)
    has_gained = False
    for number in behind:
        had = _has(counterparts, before.values[number])
        has = _has(after, again.values[number])
        if had and not has:
            return False
        if has and not had and number in unshared and not _is_moved(before, number):
            found = after.of("candidate", again.values[number])
            has_gained = has_gained or not any(counterparts.exists("reference", one) for one in found)
    return has_gained


def _is_moved(step: TrueStep, number: int) -> bool:
    maker = step.maker(step.values[number])
    return maker is not None and step.only_moves(maker)


def _find_unshared(counterparts: Counterparts) -> Set[int]:
    """The values that lead to the loss on a way on which the reference has none: a difference may go through them."""
    step = counterparts.steps["candidate"]
    found = {root.number for root in step.roots}
    for call in sorted(step.calls.values(), key=lambda call: -call.position):
        made = (step.values[number] for number in call.outputs.values() if number in found)
        if any(one.is_root or not _has(counterparts, one) for one in made):
            found.update(call.inputs.values())
    return found


def _has(counterparts: Counterparts, value: TrueValue) -> bool:
    return not counterparts.is_plain("candidate", value) and counterparts.exists("candidate", value)


def _lay_out(cut: Cut) -> Iterator[Array]:
    """The reference's value in the shape of the candidate's: with its axes in the order that fits, or as it is."""
    array, shape = cut.reference.array, cut.candidate.array.shape
    long = [size for size in shape if size > 1]
    moved = (np.transpose(array, axes) for axes in permutations(array))
    fitting = [one for one in (array, *moved) if [size for size in one.shape if size > 1] == long]
    yield from (one.reshape(shape) for one in fitting or [array])


class _CutFinder:
    """Finds what both runs put together with a value that they share, and do not share itself."""

    def __init__(self, counterparts: Counterparts, observed: Observables) -> None:
        self._counterparts = counterparts
        self._steps = counterparts.steps
        self._parameters: dict[int, list[int]] = {}
        for pair in observed.gradients:
            self._parameters.setdefault(pair.candidate.number, []).append(pair.reference.number)

    def cuts(self) -> Iterator[Cut]:
        """As the candidate ran: what calls take, and what they make of a parameter. The latter tells of a call that is
        given something else that both runs have."""
        others: dict[tuple[bool, int], list[TrueValue]] = {}
        for is_made, shared, lacking in self._meetings("reference"):
            others.setdefault((is_made, shared.number), []).append(lacking)
        seen: set[tuple[int, int]] = set()
        for is_made, shared, own in self._meetings("candidate"):
            for other in (other for number in self._partners(shared) for other in others.get((is_made, number), [])):
                if own.array.size == other.array.size and (own.number, other.number) not in seen:
                    seen.add((own.number, other.number))
                    yield Cut(other, own)

    def _meetings(self, side: str) -> Iterator[tuple[bool, TrueValue, TrueValue]]:
        """Where a call takes one value that the other run has not and that leads to the loss: each of the others. And
        where it makes one, of a parameter."""
        step = self._steps[side]
        for call in sorted(step.calls.values(), key=lambda call: call.position):
            given, made = (
                [step.values[number] for number in dict.fromkeys(slots.values())]
                for slots in (call.inputs, call.outputs)
            )
            lacking, results = ([one for one in some if self._lacks(side, one)] for some in (given, made))
            if len(lacking) == 1:
                yield from ((False, one, lacking[0]) for one in given if one is not lacking[0])
            if len(results) == 1:
                yield from ((True, one, results[0]) for one in given if one.is_trained)

    def _lacks(self, side: str, value: TrueValue) -> bool:
        """Does it say something of which the other run knows nothing?"""
        is_told = value.is_floating and not self._is_shared(side, value)
        return is_told and self._steps[side].leads_to_loss(value)

    def _is_shared(self, side: str, value: TrueValue) -> bool:
        """Or does it say nothing?"""
        known = self._counterparts
        return value.is_trained or known.is_plain(side, value) or known.exists(side, value)

    def _partners(self, value: TrueValue) -> list[int]:
        """Of a value of the candidate. A parameter may be a part of another one; what says nothing is everywhere."""
        if value.number in self._parameters or self._counterparts.is_plain("candidate", value):
            return self._parameters.get(value.number, [])
        return [one.number for one in self._counterparts.of("candidate", value)]
