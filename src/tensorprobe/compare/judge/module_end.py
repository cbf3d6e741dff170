"""Modules of two frameworks that are a pair and end at another place: a Dense with an activation, a Linear without.

The result of the one is what a call after the other returns. Held against each other they would always differ, and the
calls, or the modules that take the results, are compared anyway.
"""

from __future__ import annotations

from tensorprobe.compare.judge.course import Course
from tensorprobe.compare.match.pairing import PairedCall, RunSide
from tensorprobe.compare.result import ValuePair
from tensorprobe.model.name import FORWARD
from tensorprobe.run.call import Call
from tensorprobe.run.content import numbers_of
from tensorprobe.store.slot import Slot, TensorSlot
from tensorprobe.word.layer_word import word_of
from tensorprobe.word.operation import is_a


class ModuleEnds:
    """Knows of the results of two modules whether the same calls made them."""

    def __init__(self, course: Course) -> None:
        self._course = course

    def is_elsewhere(self, pair: PairedCall, value: ValuePair) -> bool:
        """Of a result of two modules, or of its gradient: was it made by calls that are no counterparts?"""
        if pair.reference.kind != "module" or not value.is_across_frameworks:
            return False
        if pair.reference.direction == FORWARD:
            return not value.is_input and self._has_other_maker(pair, value)
        forward = self._course.reference.pair(self._course.reference.flow.forward_of(pair.reference))
        wanted = value.slot.replace("input", "output", 1)
        results = forward.outputs if forward is not None and value.is_input else []
        return any(
            forward is not None and result.slot == wanted and self._has_other_maker(forward, result)
            for result in results
        )

    def _has_other_maker(self, pair: PairedCall, value: ValuePair) -> bool:
        reference, candidate = self._course.reference, self._course.candidate
        if not self._course.has_apis:
            calls = pair.reference, pair.candidate
            return _ends_with_more(reference, calls[0], candidate, calls[1]) or _ends_with_more(
                candidate, calls[1], reference, calls[0]
            )
        made = _maker(reference, value.reference), _maker(candidate, value.candidate)
        if made[0] is None or made[1] is None or made[0] is made[1]:
            return False
        return any(
            _contains(reference, pair.reference, found.match.reference)
            != _contains(candidate, pair.candidate, found.match.candidate)
            for found in made
            if found is not None
        )


def _maker(side: RunSide, slot: Slot | None) -> PairedCall | None:
    """The pair of the call that made a value."""
    return side.pair(side.flow.producer(slot)) if isinstance(slot, TensorSlot) else None


def _contains(side: RunSide, module: Call, calls: tuple[Call, ...]) -> bool:
    return module in calls or module in side.nesting.ancestors(calls[-1])


def _ends_with_more(side: RunSide, module: Call, other_side: RunSide, other: Call) -> bool:
    """Where only modules are recorded: does a layer return what a module in it returned that the other has not?"""
    if not is_a(word_of(module), "contraction") or other_side.nesting.inner(other):
        return False
    results = [numbers_of(slot) for slot in module.tensors if not slot.is_input]
    lone = [one for one in side.nesting.inner(module) if one.name not in side.pair_of and one.direction == FORWARD]
    return any(numbers_of(slot) in results for one in lone for slot in one.tensors if not slot.is_input)
