"""From two calls of the same place, back through both runs to where they part.

What goes into a call may exist in the other run and still not be what it is given there: results exchanged, a call left
out or put in between, another order of the axes. The two are followed back together, operand by operand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tensorprobe.compare.truth.argument import Arguments
from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.compare.truth.difference import describe_call
from tensorprobe.compare.truth.same_array import is_constant, is_same
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.replay.true_step import TrueCall, TrueValue

_COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "logical_and", "logical_or", "eq", "ne"})


def _is_commutative(call: TrueCall) -> bool:
    return word_of(call) in _COMMUTATIVE and not any("alpha" in slot for slot in call.arguments)


@dataclass(frozen=True)
class Parting:
    """Where two runs part, on the way back from a difference."""

    reference: TrueCall
    candidate: TrueCall
    because: str = ""
    """In words, if it is a call that only one of them has here."""


class Walker:
    """Follows calls of both runs back."""

    def __init__(self, counterparts: Counterparts, arguments: Arguments) -> None:
        self._counterparts = counterparts
        self._arguments = arguments
        self._steps = counterparts.steps

    def follow(self, reference: TrueCall, candidate: TrueCall) -> Parting | None:
        """The calls that take the same and give something else; or one that only one run makes; None if there are none
        on the way."""
        if word_of(reference) != word_of(candidate):
            return None
        waiting, seen, inserted = [(reference, candidate)], {candidate.name}, list[Parting]()
        while waiting:
            first, second = waiting.pop()
            others = [slot for slot in second.inputs if not self.is_same_operand(first, second, slot)]
            is_order = not others
            if not others and not self.describe_arguments(first, second):
                others = [slot for slot in second.inputs if not self._is_laid_out_alike(first, second, slot)]
            if not others and not self.has_same_results(first, second):
                return Parting(first, second)
            for slot in others:
                makers = self._makers(first, second, slot)
                if makers is None or makers[1].name in seen:
                    continue
                if word_of(makers[0]) == word_of(makers[1]):
                    seen.add(makers[1].name)
                    waiting.append(makers)
                else:
                    found = list(self._find_inserted((first, second), makers, slot, is_order))
                    inserted += found or ([Parting(*makers)] if is_order else [])  # both only move the same numbers
        return next(iter(inserted), None)

    def describe_arguments(self, reference: TrueCall, candidate: TrueCall, *, or_left_out: bool = True) -> str:
        """What both are called with, besides tensors, and is not the same; in words. `or_left_out`: also what only one
        is given."""
        calls = (("reference", reference), ("candidate", candidate))
        given, shapes = (
            [[self._value(side, number).array.shape for number in numbers] for side, numbers in chosen]
            for chosen in (
                [(side, call.inputs.values()) for side, call in calls],
                [(side, call.outputs.values()) for side, call in calls],
            )
        )
        if any(call.inside is not None for _, call in calls) and given[0] != given[1]:
            return ""  # axes of what is shaped otherwise
        has_same_shape = shapes[0] == shapes[1]
        return self._arguments.describe_differing(
            reference, candidate, has_same_shape=has_same_shape, or_left_out=or_left_out
        )

    def _find_inserted(
        self, calls: tuple[TrueCall, TrueCall], makers: tuple[TrueCall, TrueCall], slot: str, is_order: bool
    ) -> Iterable[Parting]:
        """What one run gives on as it is goes through another call in the other. What that call gives is nowhere in the
        first: else it is only another operand, unless (`is_order`) it is the same but for the order of the axes."""
        reference = self._find_operand(*calls, slot)
        assert reference is not None  # it has a maker
        candidate = self._value("candidate", calls[1].inputs[slot])
        exists = self._counterparts.exists
        if (is_order or not exists("candidate", candidate)) and self._takes("candidate", makers[1], reference):
            yield Parting(
                calls[0],
                makers[1],
                f"only the candidate calls {describe_call(makers[1])} before {describe_call(calls[1])}",
            )
        elif (is_order or not exists("reference", reference)) and self._takes("reference", makers[0], candidate):
            yield Parting(
                makers[0],
                calls[1],
                f"only the reference calls {describe_call(makers[0])} before {describe_call(calls[0])}",
            )

    def _takes(self, side: str, call: TrueCall, value: TrueValue) -> bool:
        """Is this value of the other run one that goes into the call?"""
        given = (self._value(side, number) for number in call.inputs.values())
        return any(one.array.shape == value.array.shape and self._is_same(one, value) for one in given)

    def has_same_results(self, reference: TrueCall, candidate: TrueCall) -> bool:
        """Do both give the same, in the same places? Or make as much of the same out of nothing as their batch is
        large?"""
        pairs = [
            (self._value("reference", reference.outputs[slot]), self._value("candidate", number))
            for slot, number in candidate.outputs.items()
            if slot in reference.outputs
        ]
        if not pairs:
            return False
        counts = not reference.inputs and not candidate.inputs
        return all(self._is_same(first, second) or (counts and _begin_alike(first, second)) for first, second in pairs)

    def is_same_operand(self, reference: TrueCall, candidate: TrueCall, slot: str) -> bool:
        """Are both given the same numbers in this place, in whatever order of the axes?"""
        other = self._find_operand(reference, candidate, slot)
        return other is not None and self._is_counterpart(other, self._value("candidate", candidate.inputs[slot]))

    def is_rearranged(self, reference: TrueCall, candidate: TrueCall, slot: str) -> bool:
        """Are both given the same numbers in this place, in an order that axes do not explain? But for a factor."""
        other = self._find_operand(reference, candidate, slot)
        value = self._value("candidate", candidate.inputs[slot])
        if other is None or not value.is_floating or value.array.size != other.array.size:
            return False
        sides = [np.sort(one.array, axis=None) for one in (other, value)]
        norms = [float(np.linalg.norm(one)) for one in sides]
        if not all(norms) or not np.isfinite(norms).all() or self._counterparts.is_plain("candidate", value):
            return False
        return is_same(sides[0] / norms[0], sides[1] / norms[1], self._counterparts.tolerance)

    def find_maker(self, reference: TrueCall, candidate: TrueCall, slot: str) -> TrueCall | None:
        """The call of the reference that made what it has in the place of the candidate's operand."""
        other = self._find_operand(reference, candidate, slot)
        return None if other is None else self._steps["reference"].maker(other)

    def _is_counterpart(self, reference: TrueValue, candidate: TrueValue) -> bool:
        if any(one.number == reference.number for one in self._counterparts.of("candidate", candidate)):
            return True
        return reference.array.shape == candidate.array.shape and bool(
            np.array_equal(reference.array, candidate.array, equal_nan=reference.is_floating)
        )

    def _find_operand(self, reference: TrueCall, candidate: TrueCall, slot: str) -> TrueValue | None:
        """What the reference's call is given in the place of the candidate's."""
        operands = None if _is_commutative(reference) else self._arguments.operands(reference, candidate)
        if operands is None:
            operands = self._pair_by_content(reference, candidate)
        number = reference.inputs.get(operands.get(slot, ""))
        return None if number is None else self._value("reference", number)

    def _pair_by_content(self, reference: TrueCall, candidate: TrueCall) -> dict[str, str]:
        """Operands whose order says nothing, or of calls that are not both recorded, and have other names for them: the
        same values belong together, and what is left in the order in which it is given."""
        left, found = dict(reference.inputs), dict[str, str]()
        for slot, number in candidate.inputs.items():
            value = self._value("candidate", number)
            alike = [one for one in left if self._is_counterpart(self._value("reference", left[one]), value)]
            if alike:
                found[slot] = alike[0]
                del left[alike[0]]
        return found | dict(zip((slot for slot in candidate.inputs if slot not in found), left, strict=False))

    def _is_laid_out_alike(self, reference: TrueCall, candidate: TrueCall, slot: str) -> bool:
        value, other = (
            self._value("candidate", candidate.inputs[slot]),
            self._find_operand(reference, candidate, slot),
        )
        if other is None or not self._is_same(other, value):
            return False
        is_inside = reference.inside is not None or candidate.inside is not None  # there shapes are torch's own
        return is_inside or value.array.shape == other.array.shape

    def _makers(self, reference: TrueCall, candidate: TrueCall, slot: str) -> tuple[TrueCall, TrueCall] | None:
        """The calls that made what both take in this place."""
        other = self._find_operand(reference, candidate, slot)
        if other is None:
            return None
        first = self._steps["reference"].maker(other)
        second = self._steps["candidate"].maker(self._value("candidate", candidate.inputs[slot]))
        return None if first is None or second is None else (first, second)

    def _value(self, side: str, number: int) -> TrueValue:
        return self._steps[side].values[number]

    def _is_same(self, first: TrueValue, second: TrueValue) -> bool:
        return is_same(first.array, second.array, self._counterparts.tolerance)


def _begin_alike(first: TrueValue, second: TrueValue) -> bool:
    """Are both full of one number, or rows of whole numbers of which one goes on where the other ends?"""
    arrays = first.array, second.array
    sizes = sorted(one.size for one in arrays)
    if not sizes[0] or sizes[1] % sizes[0]:  # those of a part of the batch
        return False
    if all(is_constant(one) for one in arrays):
        return bool(arrays[0].flat[0] == arrays[1].flat[0])
    is_row = all(one.ndim == 1 and one.dtype.kind in "iu" for one in arrays)
    return is_row and bool(np.array_equal(arrays[0][: sizes[0]], arrays[1][: sizes[0]]))
