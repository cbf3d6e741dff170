"""Where two steps begin to mean different things: a call of each side, what is the matter with them, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tensorprobe.compare.truth.observable import GradientPair, Observables, arrange
from tensorprobe.compare.truth.slice import Slice, Slicer
from tensorprobe.compare.truth.start import LeafPair, pair_leaves
from tensorprobe.compare.truth.value_index import Counterparts, is_same, other_side, word_of
from tensorprobe.replay.true_step import Array, TrueCall, TrueStep, TrueValue

Kind = Literal["source", "entered", "unequal start", "random", "discontinuity", "missing"]


@dataclass(frozen=True)
class Difference:
    """One beginning."""

    kind: Kind
    reference: TrueCall | None
    candidate: TrueCall | None
    because: str
    is_backward: bool = False
    leaf: TrueValue | None = None
    """What differs from the start."""
    effect: float | None = None
    """The share of the loss's difference that vanishes when the reference's value is put in its place."""
    suspects: tuple[TrueCall, ...] = ()
    """Other calls of the candidate that may be meant."""


def describe_start(pair: LeafPair, steps: Mapping[str, TrueStep]) -> Difference:
    """What the runs began with is not the same here."""
    calls = [
        next(iter(steps[side].users.get(value.number, [])), None)
        for side, value in (("reference", pair.reference), ("candidate", pair.candidate))
    ]
    leaf = pair.candidate
    kind: Kind = "unequal start" if leaf.parameter or leaf.is_trained else "entered"
    what = (
        pair.name
        if leaf.parameter or pair.reference.parameter or calls[1] is None
        else f"{leaf.slot} of {calls[1].name}"
    )
    size = "" if pair.error is None else f": they differ by {pair.error:.2g}"
    return Difference(kind, calls[0], calls[1], f"{what} is not the same at the start{size}", leaf=leaf)


class Explainer:
    """Finds the beginnings of what differs in two steps."""

    def __init__(self, counterparts: Counterparts) -> None:
        self._steps = counterparts.steps
        self._counterparts = counterparts
        self._slicers = {side: Slicer(side, counterparts) for side in self._steps}

    def explain(self, observed: Observables) -> list[Difference]:
        """The differences, the one that comes first."""
        if not observed.has_same_loss or observed.ends:
            slices = {side: self._slicers[side].follow(self._starts(side, observed)) for side in self._steps}
            found = self._explain_forward(slices)
            if found:
                return found
        return self._explain_backward([pair for pair in observed.gradients if not pair.is_equal])

    def _starts(self, side: str, observed: Observables) -> list[TrueValue]:
        step = self._steps[side]
        if step.roots and not observed.has_same_loss:
            return step.roots
        return [
            value
            for value in step.values
            if step.is_end(value) and not value.is_leaf and not self._counterparts.exists(side, value)
        ]  # fmt: skip

    # -- forward -------------------------------------------------------------------------------------------------------

    def _explain_forward(self, slices: dict[str, Slice]) -> list[Difference]:
        reference, candidate = slices["reference"], slices["candidate"]
        unequal = self._find_unequal_leaves(reference, candidate)
        if unequal and not candidate.beginnings:
            return unequal
        found = []
        for call in candidate.beginnings:
            partner = self._find_partner(call, reference.beginnings)
            is_lone = partner is None
            pair = self._walk(partner or self._find_namesake(call, reference), call)
            if pair[0] is not None and self._has_same_results(pair[0], call):
                continue  # zeros or a single number, made in another way
            found.append((is_lone, call.position, self._describe(*pair)))
        found.sort(key=lambda one: one[:2])
        differences = [one[2] for one in found]
        if not differences:
            differences = [self._describe(call, None) for call in reference.beginnings[:1]]
        earliest = min((call.position for call in candidate.beginnings), default=0)
        early = [one for one in unequal if one.candidate is not None and one.candidate.position <= earliest]
        return [*early, *differences]

    def _find_unequal_leaves(self, reference: Slice, candidate: Slice) -> list[Difference]:
        """Leaves that neither run shares with the other: those of the same parameter, or of calls of the same place."""
        found = []
        for call, leaf in candidate.leaves:
            partner = self._find_leaf(call, leaf, reference.leaves)
            if partner is None:
                continue
            found.append(describe_start(pair_leaves(partner[1], leaf), self._steps))
        return found

    def _find_leaf(
        self, call: TrueCall, leaf: TrueValue, others: Sequence[tuple[TrueCall, TrueValue]]
    ) -> tuple[TrueCall, TrueValue] | None:
        fitting = [pair for pair in others if pair[1].array.size == leaf.array.size]
        named = [pair for pair in fitting if leaf.parameter is not None and pair[1].parameter == leaf.parameter]
        alike = [pair for pair in fitting if word_of(pair[0]) == word_of(call)]
        return next(iter(named or alike or fitting), None)

    def _find_partner(self, call: TrueCall, others: Sequence[TrueCall]) -> TrueCall | None:
        """The beginning on the other side that takes the same: rather one that does the same, in the same module."""
        sharing = [other for other in others if self._share_inputs(other, call)]
        return min(
            sharing,
            key=lambda other: (
                word_of(other) != word_of(call),
                other.module_path != call.module_path,
                other.position,
            ),
            default=None,
        )

    def _find_namesake(self, call: TrueCall, reference: Slice) -> TrueCall | None:
        """The call of the reference's slice that does the same, in the same module, and as near to the end."""
        own = [one for one in self._steps["candidate"].calls.values() if _is_alike(one, call)]
        listed = [one for one in self._steps["reference"].calls.values() if one.name in reference.calls]
        others = [one for one in listed if _is_alike(one, call)]
        place = len(own) - own.index(call)
        return others[-place] if place <= len(others) else None

    def _walk(self, reference: TrueCall | None, candidate: TrueCall) -> tuple[TrueCall | None, TrueCall]:
        """What goes in exists in the other run, and yet not in this place: follow both sides back, input by input, to
        calls that take the same and give something else. Where there are none, the inputs are exchanged here."""
        if reference is None:
            return None, candidate
        waiting, seen = [(reference, candidate)], {candidate.name}
        while waiting:
            first, second = waiting.pop()
            others = [slot for slot in second.inputs if not self._is_same_operand(first, second, slot)]
            if not others:
                return first, second
            for slot in others:
                makers = self._makers(first, second, slot)
                if makers is not None and makers[1].name not in seen:
                    seen.add(makers[1].name)
                    waiting.append(makers)
        return reference, candidate

    def _makers(self, reference: TrueCall, candidate: TrueCall, slot: str) -> tuple[TrueCall, TrueCall] | None:
        """The calls that made what both take in this place, if they do the same."""
        number = reference.inputs.get(slot)
        if number is None:
            return None
        first = self._steps["reference"].maker(self._steps["reference"].values[number])
        second = self._steps["candidate"].maker(self._steps["candidate"].values[candidate.inputs[slot]])
        if first is None or second is None or word_of(first) != word_of(second):
            return None
        return first, second

    def _has_same_results(self, reference: TrueCall, candidate: TrueCall) -> bool:
        values = {side: self._steps[side].values for side in self._steps}
        pairs = [
            (values["reference"][reference.outputs[slot]].array, values["candidate"][number].array)
            for slot, number in candidate.outputs.items()
            if slot in reference.outputs
        ]
        return bool(pairs) and all(is_same(first, second, self._counterparts.tolerance) for first, second in pairs)

    def _share_inputs(self, reference: TrueCall, candidate: TrueCall) -> bool:
        numbers = set(reference.inputs.values())
        step = self._steps["candidate"]
        for number in candidate.inputs.values():
            value = step.values[number]
            if any(one.number in numbers for one in self._counterparts.of("candidate", value)):
                return True
        return False

    def _describe(self, reference: TrueCall | None, candidate: TrueCall | None) -> Difference:
        if reference is None or candidate is None:
            one = candidate or reference
            assert one is not None
            side = "candidate" if candidate is not None else "reference"
            return Difference("source", reference, candidate, f"what it computes is not in the {other_side(side)}")
        if candidate.is_random and reference.is_random:
            return Difference("random", reference, candidate, "it drew other random numbers")
        if word_of(reference) != word_of(candidate):
            because = f"the reference goes on with {reference.name}, the candidate with {candidate.name}"
            return Difference("source", reference, candidate, because)
        arguments = list(_differing_arguments(reference, candidate))
        if arguments:
            return Difference("entered", reference, candidate, f"called with {', '.join(arguments[:4])}")
        operands = [slot for slot in candidate.inputs if not self._is_same_operand(reference, candidate, slot)]
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

    def _is_same_operand(self, reference: TrueCall, candidate: TrueCall, slot: str) -> bool:
        number = reference.inputs.get(slot)
        if number is None:
            return False
        value = self._steps["candidate"].values[candidate.inputs[slot]]
        return any(one.number == number for one in self._counterparts.of("candidate", value)) or self._is_equal_operand(
            self._steps["reference"].values[number], value
        )

    def _is_equal_operand(self, reference: TrueValue, candidate: TrueValue) -> bool:
        return reference.array.shape == candidate.array.shape and bool(
            np.array_equal(reference.array, candidate.array, equal_nan=reference.is_floating)
        )

    # -- backward ------------------------------------------------------------------------------------------------------

    def _explain_backward(self, pairs: Iterable[GradientPair]) -> list[Difference]:
        """The forward is the same. From each parameter whose gradient differs, on to where the gradient that arrives is
        the same and the one that goes on is not."""
        found: dict[str, Difference] = {}
        for pair in pairs:
            for difference in self._follow_gradient(pair):
                found.setdefault(difference.because + (difference.candidate or difference.reference).name, difference)  # type: ignore[union-attr]
        return sorted(found.values(), key=lambda one: -(one.candidate.position if one.candidate else 0))

    def _follow_gradient(self, pair: GradientPair) -> list[Difference]:
        step = self._steps["candidate"]
        waiting, seen, found = [pair.candidate], set(), []
        while waiting:
            value = waiting.pop()
            if value.number in seen:
                continue
            seen.add(value.number)
            users = step.users.get(value.number, [])
            later = []
            for call in users:
                states = {
                    number: self._compare_gradients(call, slot)
                    for slot, number in call.outputs.items()
                    if step.values[number].is_floating
                }
                later += [step.values[number] for number, state in states.items() if state is not True]
                if states and all(states.values()) and not self._gives_same(call, value):
                    found.append(self._describe_backward(call, value, pair))
            waiting += later
            if not users and not later:
                continue
        return found

    def _compare_gradients(self, call: TrueCall, slot: str) -> bool | None:
        """Is the gradient that arrives at a result that of the same value in the reference? None where that value, or
        its gradient, is not there."""
        value = self._steps["candidate"].values[call.outputs[slot]]
        own = call.arriving.get(slot)
        partners = [one for one in self._counterparts.of("candidate", value) if not one.is_leaf]
        if not partners:
            return None
        for one in partners:
            other = self._arriving(one)
            if own is None and other is None:
                return None
            if (
                own is not None
                and other is not None
                and _is_same_gradient(value.array, own, one.array, other, self._counterparts.tolerance)
            ):
                return True
        return False

    def _arriving(self, value: TrueValue) -> Array | None:
        step = self._steps["reference"]
        maker = step.maker(value)
        if maker is None:
            return None
        return next(
            (maker.arriving.get(slot) for slot, number in maker.outputs.items() if number == value.number), None
        )

    def _gives_same(self, call: TrueCall, value: TrueValue) -> bool:
        """Does the partner of this call give the same share back to the partner of this value?"""
        slots = [slot for slot, number in call.inputs.items() if number == value.number]
        own = [call.departing[slot] for slot in slots if slot in call.departing]
        for one in self._counterparts.of("candidate", value):
            for other in self._steps["reference"].users.get(one.number, []):
                shares = [
                    other.departing[slot]
                    for slot, number in other.inputs.items()
                    if number == one.number and slot in other.departing
                ]
                if len(shares) == len(own) and all(
                    _is_same_gradient(value.array, first, one.array, second, self._counterparts.tolerance)
                    for first, second in zip(own, shares, strict=True)
                ):
                    return True
        return False

    def _describe_backward(self, call: TrueCall, value: TrueValue, pair: GradientPair) -> Difference:
        reference = self._find_same_call(call)
        slots = [slot for slot, number in call.inputs.items() if number == value.number]
        if not any(slot in call.departing for slot in slots):
            because = (
                f"no gradient goes from it to {slots[0] if slots else 'what goes in'}, as one does in the reference"
            )
        else:
            because = "the gradient that arrives is the same, and the one that it gives back is not"
        return Difference("source", reference, call, because, is_backward=True)

    def _find_same_call(self, call: TrueCall) -> TrueCall | None:
        """The call of the reference that makes the same value, rather in the same place."""
        step = self._steps["reference"]
        for number in call.outputs.values():
            value = self._steps["candidate"].values[number]
            makers = [step.maker(one) for one in self._counterparts.of("candidate", value)]
            same = [maker for maker in makers if maker is not None and word_of(maker) == word_of(call)]
            if same:
                return min(
                    same, key=lambda maker: (maker.module_path != call.module_path, abs(maker.position - call.position))
                )
        return None


def _is_alike(first: TrueCall, second: TrueCall) -> bool:
    return word_of(first) == word_of(second) and first.module_path == second.module_path


def _is_same_gradient(array: Array, gradient: Array, other_array: Array, other: Array, tolerance: float) -> bool:
    arranged = arrange(other_array, array, other, tolerance)
    if arranged is None:
        return False
    first, second = gradient.reshape(-1), arranged.reshape(-1)
    if first.size != second.size:
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        scale = max(float(np.linalg.norm(first)), float(np.linalg.norm(second)))
        return float(np.linalg.norm(np.nan_to_num(first - second))) <= 10 * tolerance * scale


def _differing_arguments(reference: TrueCall, candidate: TrueCall) -> Iterable[str]:
    for slot in dict.fromkeys((*reference.arguments, *candidate.arguments)):
        first, second = reference.arguments.get(slot), candidate.arguments.get(slot)
        if first != second and not _is_dtype(first, second):
            yield f"{slot.removeprefix('kwargs.')}={second!r} where the reference had {first!r}"


def _is_dtype(first: object, second: object) -> bool:
    """Another precision means the same."""
    return all(isinstance(one, str) and one.startswith("torch.") for one in (first, second))
