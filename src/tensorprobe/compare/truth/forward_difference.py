"""Where the forwards of two steps begin to mean different things: a call of each side, what is the matter with them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from tensorprobe.compare.truth.argument import Arguments
from tensorprobe.compare.truth.difference import Difference, describe_call, describe_start
from tensorprobe.compare.truth.observable import Observables
from tensorprobe.compare.truth.proportional import Proportional
from tensorprobe.compare.truth.scattered import Scattered
from tensorprobe.compare.truth.slice import Slice, Slicer
from tensorprobe.compare.truth.start import pair_lone_leaves
from tensorprobe.compare.truth.value_index import Counterparts, other_side, unlikeness, word_of
from tensorprobe.compare.truth.walk import Walker
from tensorprobe.replay.true_step import TrueCall, TrueStep, TrueValue

_MAX_OPENED = 16
"""So many times calls are taken apart."""


def explain_forward(
    counterparts: Counterparts, observed: Observables, arguments: Arguments, inside: Mapping[str, Opener]
) -> tuple[list[Difference], Counterparts]:
    """Where the forwards part, the place that comes first, and both steps with those calls taken apart that had to be.
    If a call stands against one that does something else, what is computed inside them is looked at, too; then values
    that the other run has but for a factor, or in parts."""
    opening = Opening(counterparts, observed, arguments, inside)
    differences, counterparts = opening.explain()
    if differences and _does_the_same(differences[0]):
        return opening.name(differences), counterparts
    proportional = Proportional(counterparts)
    multiples = ForwardExplainer(counterparts, proportional, arguments).explain(observed)
    factor = proportional.explain(multiples[0]) if multiples else None
    if factor is not None:
        return [factor, *multiples[1:]], counterparts
    if multiples and _does_the_same(multiples[0]):
        return multiples, counterparts
    scattered = Scattered(counterparts)
    if differences and _is_telling(differences[0], scattered):
        return opening.name(differences), counterparts
    others = ForwardExplainer(counterparts, scattered, arguments).explain(observed)
    first = min(others, key=_position, default=None)
    if first is None or first.reference is None or first.candidate is None:
        return differences or others, counterparts
    moved = [replace(one, suspects=tuple(_find_movers(one.candidate, scattered))) for one in others]
    return moved, counterparts


class Opener(Protocol):
    """Takes calls of one run apart."""

    def open(self, step: TrueStep, name: str) -> TrueStep | None: ...


class Opening:
    """Takes the calls apart at which two runs part, until they are found to part at two calls of a kind."""

    def __init__(
        self, counterparts: Counterparts, observed: Observables, arguments: Arguments, inside: Mapping[str, Opener]
    ) -> None:
        self._counterparts, self._observed = counterparts, observed
        self._arguments, self._inside = arguments, inside
        self._rounds: list[Difference] = []
        """The first difference of each."""

    def explain(self) -> tuple[list[Difference], Counterparts]:
        for _ in range(_MAX_OPENED):
            explainer = ForwardExplainer(self._counterparts, self._counterparts, self._arguments)
            differences = explainer.explain(self._observed)
            self._rounds += differences[:1]
            is_found = bool(differences) and _does_the_same(differences[0])
            if is_found and not differences[0].is_inside:
                break
            if not self._open(explainer.find_unlike(differences), only_spells=is_found):
                break
        return differences, self._counterparts

    def name(self, differences: Sequence[Difference]) -> list[Difference]:
        """The first one by calls of the program, where it was seen at these before they were taken apart, too: that a
        softmax differs says more than that a maximum in it does."""
        last = differences[0]
        earlier = [one for one in self._rounds if one.is_inside and _is_in_same_calls(one, last)]
        if not earlier:
            return list(differences)
        if not _does_the_same(last):
            return [earlier[0], *differences[1:]]
        recorded = {
            side: next((call for one in earlier if (call := one.call(side)) is not None and call.inside is None), None)
            for side in self._counterparts.steps
        }
        calls = {side: call for side, call in recorded.items() if call is not None}
        return [replace(last, **calls), *differences[1:]]

    def _open(self, names: Mapping[str, Sequence[str]], *, only_spells: bool) -> bool:
        """Take these apart, on the side that has more inside. `only_spells`: look only what they are called there."""
        steps = {side: self._open_all(side, names[side]) for side in self._counterparts.steps}
        sizes = {side: len(step.calls) for side, step in steps.items()}
        gains = {side: size - len(self._counterparts.steps[side].calls) for side, size in sizes.items()}
        largest = 0 if only_spells else max(gains.values())
        chosen = {side: steps[side] for side, gain in gains.items() if gain in (0, largest)}
        steps = {**self._counterparts.steps, **chosen}
        if steps == self._counterparts.steps:
            return False
        self._counterparts = Counterparts(**steps, known=self._counterparts)
        return True

    def _open_all(self, side: str, names: Sequence[str]) -> TrueStep:
        step = self._counterparts.steps[side]
        for name in names:
            step = self._inside[side].open(step, name) or step
        return step


def _is_in_same_calls(first: Difference, second: Difference) -> bool:
    pairs = (first.reference, second.reference), (first.candidate, second.candidate)
    names = [[(call.inside or call.name) if call is not None else None for call in pair] for pair in pairs]
    return all(one == other for one, other in names)


def _does_the_same(one: Difference) -> bool:
    """Is nothing gained by looking inside?"""
    if one.leaf is not None or one.is_lone:
        return True
    if one.reference is None or one.candidate is None:
        return False
    return word_of(one.reference) == word_of(one.candidate)


def _position(one: Difference) -> int:
    return one.candidate.position if one.candidate is not None else -1


def _is_telling(one: Difference, scattered: Scattered) -> bool:
    """Do both calls do something of a kind? One that computes stands for none that moves numbers or makes zeros."""
    if _does_the_same(one):
        return True
    return (
        one.reference is not None
        and one.candidate is not None
        and scattered.kind_of("reference", one.reference) == scattered.kind_of("candidate", one.candidate)
    )


def _find_movers(call: TrueCall | None, scattered: Scattered) -> Iterator[TrueCall]:
    """The calls after this one that only move what it gives: any of them may be meant."""
    step = scattered.steps["candidate"]
    while call is not None and scattered.only_moves("candidate", call):
        users = [user for number in call.outputs.values() for user in step.users.get(number, [])]
        call = users[0] if len(users) == 1 else None
        if call is not None and scattered.only_moves("candidate", call):
            yield call


class Likeness(Protocol):
    """Which values of one run are in the other?"""

    def of(self, side: str, value: TrueValue) -> list[TrueValue]: ...

    def exists(self, side: str, value: TrueValue) -> bool: ...


class ForwardExplainer:
    """Finds the beginnings of what differs in two steps."""

    def __init__(self, counterparts: Counterparts, likeness: Likeness, arguments: Arguments) -> None:
        self._steps = counterparts.steps
        self._counterparts = counterparts
        self._likeness = likeness
        self._walker = Walker(counterparts, arguments)
        self._slices: dict[str, Slice] = {}
        self._slicers = {side: Slicer(side, counterparts, likeness.exists) for side in self._steps}

    def explain(self, observed: Observables) -> list[Difference]:
        """The differences, the one that comes first."""
        self._slices = {side: self._slicers[side].follow(self._starts(side, observed)) for side in self._steps}
        return self._explain_forward(self._slices)

    def find_unlike(self, differences: Sequence[Difference]) -> dict[str, list[str]]:
        """The calls of each side that the first difference leads to: those that are named, or all where it begins."""
        first = differences[0] if differences else None
        named = {
            "reference": first.reference if first is not None else None,
            "candidate": first.candidate if first is not None else None,
        }
        return {
            side: [one.name for one in ([call] if call is not None else self._slices[side].beginnings[:_MAX_OPENED])]
            for side, call in named.items()
        }

    def _starts(self, side: str, observed: Observables) -> list[TrueValue]:
        step = self._steps[side]
        if step.roots and not observed.has_same_loss:
            return step.roots
        return [
            value
            for value in step.values
            if step.is_end(value) and not value.is_leaf and not self._counterparts.exists(side, value)
        ]  # fmt: skip

    def _explain_forward(self, slices: dict[str, Slice]) -> list[Difference]:
        reference, candidate = slices["reference"], slices["candidate"]
        unequal = self._find_unequal_leaves(candidate)
        for side in (reference, candidate):
            side.beginnings = [call for call in side.beginnings if not self._takes(call, unequal)]
        if unequal and not candidate.beginnings:
            return unequal
        found = []
        for call in candidate.beginnings:
            partner = self._find_partner(call, reference.beginnings)
            namesake = self._find_namesake(call, reference)
            other = partner or namesake
            if other is not None and self._walker.has_same_results(other, call):
                continue  # zeros or a single number, made in another way
            if other is None:
                partner = self._find_next(call, reference)
            found.append((partner is None, call.position, self._explain_call(call, partner, namesake)))
        found.sort(key=lambda one: one[:2])
        places = {(one.reference, one.candidate): one for *_, one in reversed(found)}
        differences = list(reversed(places.values()))
        if not differences:
            differences = [self._describe(call, None) for call in reference.beginnings[:1]]
        earliest = min((call.position for call in candidate.beginnings), default=0)
        early = [one for one in unequal if one.candidate is not None and one.candidate.position <= earliest]
        return [*early, *differences]

    def _explain_call(self, call: TrueCall, partner: TrueCall | None, namesake: TrueCall | None) -> Difference:
        """`partner` takes the same; `namesake` does the same in the same place, and may be given something else."""
        for other in (partner, namesake):
            parting = None if other is None else self._walker.follow(other, call)
            if parting is not None and parting.because:
                return Difference("source", parting.reference, parting.candidate, parting.because, is_lone=True)
            if parting is not None:
                return self._describe(parting.reference, parting.candidate)
        return self._describe(partner or namesake, call)

    def _takes(self, call: TrueCall, unequal: Sequence[Difference]) -> bool:
        """Is the reason why it gives something else that it takes what was not the same at the start?"""
        return any(call in (one.reference, one.candidate) for one in unequal)

    def _find_unequal_leaves(self, candidate: Slice) -> list[Difference]:
        """Leaves that lead to a difference, and that neither run shares with the other."""
        leading = {leaf.number for _, leaf in candidate.leaves}
        pairs = [pair for pair in pair_lone_leaves(self._counterparts) if pair.candidate.number in leading]
        return [describe_start(pair, self._steps) for pair in pairs if pair.is_certain]

    def _find_partner(self, call: TrueCall, others: Sequence[TrueCall]) -> TrueCall | None:
        """The beginning on the other side that takes the same: rather one that does the same, in the same module."""
        sharing = [other for other in others if self._share_inputs(other, call)]
        return min(sharing, key=partial(unlikeness, call), default=None)

    def _find_next(self, call: TrueCall, reference: Slice) -> TrueCall | None:
        """What the reference does with what this call takes, on the way to the difference."""
        listed = [one for one in self._steps["reference"].calls.values() if one.name in reference.calls]
        return next((one for one in listed if self._share_inputs(one, call)), None)

    def _find_namesake(self, call: TrueCall, reference: Slice) -> TrueCall | None:
        """The call of the reference's slice that does the same, in the same module, and as near to the end."""
        own = [one for one in self._steps["candidate"].calls.values() if _is_alike(one, call)]
        listed = [one for one in self._steps["reference"].calls.values() if one.name in reference.calls]
        others = [one for one in listed if _is_alike(one, call)]
        place = len(own) - own.index(call)
        return others[-place] if place <= len(others) else None

    def _share_inputs(self, reference: TrueCall, candidate: TrueCall) -> bool:
        given = {"reference": set(reference.inputs.values()), "candidate": set(candidate.inputs.values())}
        return any(
            one.number in given[other_side(side)]
            for side, numbers in given.items()
            for number in numbers
            for one in self._likeness.of(side, self._steps[side].values[number])
        )

    def _find_untaken(self, reference: TrueCall, candidate: TrueCall) -> TrueValue | None:
        """A leaf that the candidate has nowhere, if that is all that two calls are not both given."""
        values = self._steps["reference"].values
        given = [values[number] for number in dict.fromkeys(reference.inputs.values())]
        lacking = [value for value in given if value.is_leaf and not self._likeness.exists("reference", value)]
        taken = [self._steps["candidate"].values[number] for number in dict.fromkeys(candidate.inputs.values())]
        shared = [value for value in given if value not in lacking]
        is_all = all(self._is_among("reference", value, taken) for value in shared)
        if len(lacking) != 1 or not is_all or not all(self._is_among("candidate", one, shared) for one in taken):
            return None
        return lacking[0]

    def _is_among(self, side: str, value: TrueValue, others: Sequence[TrueValue]) -> bool:
        numbers = {one.number for one in others}
        return any(one.number in numbers for one in self._likeness.of(side, value))

    def _describe(self, reference: TrueCall | None, candidate: TrueCall | None) -> Difference:
        if reference is None or candidate is None:
            one = candidate or reference
            assert one is not None
            side = "candidate" if candidate is not None else "reference"
            return Difference("source", reference, candidate, f"what it computes is not in the {other_side(side)}")
        if candidate.is_random and reference.is_random:
            return Difference("random", reference, candidate, "it drew other random numbers")
        untaken = self._find_untaken(reference, candidate)
        if untaken is not None:
            because = f"it does not take {untaken.parameter or untaken.slot}, as the reference does"
            return Difference("entered", reference, candidate, because, is_lone=True)
        if word_of(reference) != word_of(candidate):
            because = f"the reference goes on with {describe_call(reference)}, the candidate with {describe_call(candidate)}"
            return Difference("source", reference, candidate, because)
        arguments = self._walker.describe_arguments(reference, candidate)
        if arguments:
            return Difference("entered", reference, candidate, f"called with {arguments}")
        operands = [slot for slot in candidate.inputs if not self._walker.is_same_operand(reference, candidate, slot)]
        if operands:
            words = ", ".join(operands[:4])
            return Difference("entered", reference, candidate, f"it is given another value as {words}")
        values = self._steps["candidate"].values
        is_choice = not any(values[number].is_floating for number in candidate.outputs.values())
        is_rounded = any(values[number].is_floating for number in candidate.inputs.values())
        if candidate.outputs and is_choice and is_rounded:
            because = "what goes in has the same truth, and its result is a choice that rounding changed"
            return Difference("discontinuity", reference, candidate, because)
        return Difference("source", reference, candidate, "what goes in is the same, and it computes something else")


def _is_alike(first: TrueCall, second: TrueCall) -> bool:
    return word_of(first) == word_of(second) and first.module_path == second.module_path
