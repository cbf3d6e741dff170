"""Where the forwards of two steps begin to mean different things: a call of each side, what is the matter with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tensorprobe.compare.truth.argument import Arguments
from tensorprobe.compare.truth.call_likeness import count_alike, find_alike, is_alike, unlikeness, word_of
from tensorprobe.compare.truth.difference import Difference, describe_call, describe_start
from tensorprobe.compare.truth.flipped_choice import FLIPPED, is_explained_by_rounding
from tensorprobe.compare.truth.observable import Observables
from tensorprobe.compare.truth.piece import find_pieces
from tensorprobe.compare.truth.repeated import find_repeated
from tensorprobe.compare.truth.slice import Slice, Slicer
from tensorprobe.compare.truth.start import pair_lone_leaves
from tensorprobe.compare.truth.value_index import ORDERS, Counterparts, Likeness, other_side
from tensorprobe.compare.truth.walk import Walker
from tensorprobe.replay.true_step import TrueCall, TrueValue
from tensorprobe.word.operation import is_a

_DRAWN = "it drew different random numbers (to draw the same, call seed_all in both runs)"
_MAX_OPENED = 4
"""Of the calls where one run alone begins to differ, so many are taken apart."""


Starts = Mapping[str, Sequence[TrueValue]]


def find_starts(counterparts: Counterparts, observed: Observables) -> Starts:
    """The observables that differ."""
    return {side: _find_observed(side, counterparts, observed) for side in counterparts.steps}


def _find_observed(side: str, counterparts: Counterparts, observed: Observables) -> Sequence[TrueValue]:
    step = counterparts.steps[side]
    if step.roots and not observed.has_same_loss:
        return step.roots
    return observed.ends.get(side, ())


def find_lacking(one: Difference, counterparts: Counterparts) -> Starts:
    """What its calls take and give in the forward, and the other run has not."""
    found: dict[str, list[TrueValue]] = {}
    for side, step in counterparts.steps.items():
        call = one.call(side)
        numbers = [] if call is None else dict.fromkeys((*call.inputs.values(), *call.outputs.values()))
        values = [step.values[number] for number in numbers]
        found[side] = [value for value in values if value.is_floating and not counterparts.exists(side, value)]
    return found


class ForwardExplainer:
    """Finds the beginnings of what differs in two steps."""

    def __init__(self, counterparts: Counterparts, likeness: Likeness, arguments: Arguments) -> None:
        self._steps = counterparts.steps
        self._counterparts = counterparts
        self._likeness = likeness
        self._walker = Walker(counterparts, arguments)
        self._slices: dict[str, Slice] = {}
        self._slicers = {side: Slicer(side, counterparts, likeness.exists) for side in self._steps}
        self._arguments = arguments

    def explain(self, starts: Starts) -> list[Difference]:
        """The differences, the one that comes first. `starts`: the values of each side that differ, and shall not."""
        unshared = {side: self._find_unshared(side, starts[side]) for side in self._steps}
        for side, step in self._steps.items():  # which may be taken apart since these were found
            differing = unshared[side] if any(unshared.values()) else starts[side]
            self._slices[side] = self._slicers[side].follow(step.values[value.number] for value in differing)
        return self._explain_forward(self._slices)

    def _find_unshared(self, side: str, starts: Sequence[TrueValue]) -> list[TrueValue]:
        """Those that the other run has not. If a loss of one run is in the other, it is there that something is done to
        it: a term is added, or is left out here."""
        exists, is_plain = self._counterparts.exists, self._counterparts.is_plain
        return [value for value in starts if is_plain(side, value) or not exists(side, value)]

    def beginnings(self, side: str) -> list[TrueCall]:
        """Where what differs begins in one run, as far as it was explained."""
        return self._slices[side].beginnings

    def leads_on(self, one: Difference) -> bool:
        """Is one of its calls on a way to what differs?"""
        return any(call is not None and call.name in self._slices[side].calls for side, call in one.calls())

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

    def _explain_forward(self, slices: dict[str, Slice]) -> list[Difference]:
        reference, candidate = slices["reference"], slices["candidate"]
        unequal = self._find_unequal_leaves(candidate)
        for side in (reference, candidate):
            side.beginnings = [call for call in side.beginnings if not self._takes(call, unequal)]
        if unequal and not candidate.beginnings:
            return unequal
        found: list[tuple[bool, int, Difference]] = []
        taking: list[tuple[bool, int, Difference]] = []
        for call in candidate.beginnings:
            partner = self._find_partner(call, reference.beginnings)
            namesake = self._find_namesake(call, reference)
            other = partner or namesake
            if other is not None and self._walker.has_same_results(other, call):
                continue  # zeros or a single number, made in another way
            if other is None:
                partner = self._find_next(call, reference)
            is_lone = partner is None and (namesake is None or not self._share_inputs(namesake, call))
            one = self._explain_call(call, partner, namesake)
            one = replace(
                one,
                takes_up_mask=one.candidate is not None and self._slicers["candidate"].takes_up_other(one.candidate),
            )
            is_led_to = one.takes_up_mask and one.is_given_other  # the mask is wrong, not this call
            if not is_led_to:
                found.append((is_lone, call.position, one))
            elif self._chooses_otherwise(call):
                taking.append((is_lone, call.position, one))
        # where nothing is known of what makes the mask, this is where it is seen
        found += [one for one in taking if not any(not is_lone and at < one[1] for is_lone, at, _ in found)]
        found.sort(key=lambda one: one[:2])
        places = {(one.reference, one.candidate): one for *_, one in reversed(found)}
        differences = list(reversed(places.values()))
        if not differences:
            differences = [self._describe(call, None) for call in reference.beginnings[:1]]
        if differences and (differences[0].is_given_other or differences[0].candidate is None):
            differences[:0] = find_repeated(differences[0], reference.beginnings, self._steps, self._likeness)
        earliest = min((call.position for call in candidate.beginnings), default=0)
        early = [one for one in unequal if one.candidate is not None and one.candidate.position <= earliest]
        return [*early, *differences]

    def _chooses_otherwise(self, call: TrueCall) -> bool:
        """Does it take a mask of true and false that the reference has not?"""
        given = (self._steps["candidate"].values[number] for number in call.inputs.values())
        return any(one.array.dtype.kind == "b" and not self._likeness.exists("candidate", one) for one in given)

    def _explain_call(self, call: TrueCall, partner: TrueCall | None, namesake: TrueCall | None) -> Difference:
        """`partner` takes the same; `namesake` does the same in the same place, and may be given something else."""
        for other in (partner, namesake):
            parting = None if other is None else self._walker.follow(other, call)
            if parting is not None and parting.because:
                return Difference("source", parting.reference, parting.candidate, parting.because, is_clear=True)
            if parting is not None:
                return self._describe(parting.reference, parting.candidate)
        if partner is not None and self._is_left_out(partner, call):
            because = "the candidate's call takes the input of the reference's call, not its result"
            return Difference("source", partner, call, because, is_left_out=True)
        return self._describe(partner or namesake, call)

    def _is_left_out(self, partner: TrueCall, call: TrueCall) -> bool:
        """Does the reference do the same as this call with what `partner` makes of what this call takes?"""
        if word_of(partner) == word_of(call):
            return False
        step, values, given = self._steps["reference"], self._steps["candidate"].values, set(partner.inputs.values())
        for user in step.calls.values():
            made = {slot for slot, number in user.inputs.items() if step.values[number].maker == partner.name}
            if not made or word_of(user) != word_of(call) or self._walker.describe_arguments(user, call):
                continue
            others = {slot for slot in call.inputs if not self._is_same_operand(user, call, slot)}
            taken = [values[call.inputs[slot]] for slot in others]
            likes = ([one.number for one in self._likeness.of("candidate", value)] for value in taken)
            if others and others <= made and not any(given.isdisjoint(numbers) for numbers in likes):
                return True
        return False

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
        if not self._slicers["candidate"].begins(call):
            return None  # it takes leaves that the reference has not: nothing shows that both stand in one place
        own, others = (list(self._steps[side].calls.values()) for side in ("candidate", "reference"))
        listed = [one for one in others if one.name in reference.calls]
        has_own = count_alike(call, own) == count_alike(call, others)
        namesake = find_alike(call, own, others if has_own else listed)
        if namesake is None or namesake not in listed:
            return None
        if not self._share_inputs(namesake, call) and self._walker.describe_arguments(namesake, call):
            return None  # it is given other values, and other numbers besides: nothing speaks for it
        return namesake

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
        taken = [self._steps["candidate"].values[number] for number in dict.fromkeys(candidate.inputs.values())]
        joined = [(one, other) for one in given for other in taken if _is_part(one, other) or _is_part(other, one)]
        given = [value for value in given if all(value is not one for one, _ in joined)]
        taken = [value for value in taken if all(value is not other for _, other in joined)]
        lacking = [value for value in given if value.is_leaf and not self._likeness.exists("reference", value)]
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
            return Difference("source", reference, candidate, f"its result occurs nowhere in the {other_side(side)}")
        if candidate.is_random and reference.is_random:
            return Difference("random", reference, candidate, _DRAWN)
        untaken = self._find_untaken(reference, candidate)
        if untaken is not None:
            because = f"it does not use {untaken.parameter or untaken.slot}, but the reference does"
            return Difference("entered", reference, candidate, because, is_clear=True)
        operands = [slot for slot in candidate.inputs if not self._is_same_operand(reference, candidate, slot)]
        words = word_of(reference), word_of(candidate)
        if words[0] != words[1]:
            is_comparison = ORDERS.issuperset(words) and not operands
            if is_comparison and not self._walker.describe_arguments(reference, candidate):
                because = f"it compares with `{words[1]}` where the reference compares with `{words[0]}`"
                return Difference("source", reference, candidate, because, is_clear=True)
            because = "both take the same value, but compute different things from it"
            return Difference("source", reference, candidate, because)
        arguments = self._walker.describe_arguments(reference, candidate, or_left_out=not operands)
        if arguments:
            because = f"called with {arguments}"
            return Difference("entered", reference, candidate, because, is_called_otherwise=True)
        if operands:
            return self._describe_operands(reference, candidate, operands)
        if is_a(words[0], "random"):  # a dropout, whose mask is what was recorded
            return Difference("random", reference, candidate, _DRAWN)
        values = self._steps["candidate"].values
        is_choice = not any(values[number].is_floating for number in candidate.outputs.values())
        is_rounded = any(values[number].is_floating for number in candidate.inputs.values())
        chosen = reference.name, candidate.name
        is_explained = all(is_explained_by_rounding(step, chosen) for step in self._steps.values())
        if candidate.outputs and is_choice and is_rounded and is_explained:
            return Difference("discontinuity", reference, candidate, FLIPPED)
        return Difference("source", reference, candidate, "its inputs are the same, but its result is not")

    def _is_same_operand(self, reference: TrueCall, candidate: TrueCall, slot: str) -> bool:
        if self._walker.is_same_operand(reference, candidate, slot):
            return True
        given = self._steps["candidate"].values[candidate.inputs[slot]]
        taken = [self._steps["reference"].values[reference.inputs[slot]]] if slot in reference.inputs else []
        return self._likeness is not self._counterparts and self._is_among("candidate", given, taken)

    def _describe_operands(self, reference: TrueCall, candidate: TrueCall, operands: Sequence[str]) -> Difference:
        """Of two calls that are not given the same in these places."""
        for slot in operands:
            viewed = self._find_viewed(reference, candidate, slot)
            if viewed is not None:
                because = f"as {slot} it takes another view of the result of {describe_call(viewed)}"
                return Difference("source", reference, candidate, because, is_clear=True)
        rearranged = next((slot for slot in operands if self._walker.is_rearranged(reference, candidate, slot)), None)
        movers = list(self._find_movers_before(candidate, rearranged)) if rearranged is not None else []
        if rearranged is not None and movers:
            because = f"after it, {rearranged} of {describe_call(candidate)} has the right values in the wrong order"
            right = self._walker.find_maker(reference, candidate, rearranged) or reference
            return Difference("source", right, movers[0], because, is_clear=True, suspects=tuple(movers[1:]))
        for slot in operands:
            makers = self._find_makers(reference, candidate, slot)
            if makers is not None:
                return self._describe(*makers)
        words = ", ".join(operands[:4])
        return Difference("entered", reference, candidate, f"it gets a different value for {words}")

    def _find_viewed(self, reference: TrueCall, candidate: TrueCall, slot: str) -> TrueCall | None:
        """The candidate's call that gives the same in both runs, if a run takes something else of it here that no
        recorded call made, such as `.mT` or `.imag`."""
        if slot not in reference.inputs or slot not in candidate.inputs:
            return None
        taken = {"reference": reference.inputs[slot], "candidate": candidate.inputs[slot]}
        makers = [step.maker(step.values[taken[side]]) for side, step in self._steps.items()]
        right, other = makers
        if right is None or other is None or not self._walker.has_same_results(right, other):
            return None
        is_made = taken["reference"] in right.outputs.values() and taken["candidate"] in other.outputs.values()
        return None if is_made else other

    def _find_makers(self, reference: TrueCall, candidate: TrueCall, slot: str) -> tuple[TrueCall, TrueCall] | None:
        """The calls that made what two calls are given in one place, if both do the same in the same module, and the
        candidate has nowhere what the reference's gives: so it is there that something else is done, although the
        reference has, elsewhere, what the candidate takes."""
        if slot not in reference.inputs or slot not in candidate.inputs:
            return None
        calls = {"reference": reference, "candidate": candidate}
        given = {side: step.values[calls[side].inputs[slot]] for side, step in self._steps.items()}
        right, other = (step.maker(given[side]) for side, step in self._steps.items())
        if right is None or other is None or not is_alike(right, other):
            return None
        is_before = right.position < reference.position and other.position < candidate.position
        return (right, other) if is_before and not self._likeness.exists("reference", given["reference"]) else None

    def _find_movers_before(self, call: TrueCall, slot: str) -> Iterator[TrueCall]:
        """The calls that have only moved the numbers of an operand, the last one first."""
        step = self._steps["candidate"]
        value, last = step.values[call.inputs[slot]], call
        while (maker := step.maker(value)) is not None and maker.position < last.position and step.only_moves(maker):
            yield maker
            moved = (step.values[number] for number in maker.inputs.values())
            value, last = next(one for one in moved if one.is_floating), maker


def _is_part(part: TrueValue, whole: TrueValue) -> bool:
    """Are the numbers of one parameter a part of another one, as those of one of several joined projections are?"""
    are_trained = part.is_trained and whole.is_trained and part.array.size < whole.array.size
    return are_trained and next(find_pieces([part], [whole]), None) is not None
