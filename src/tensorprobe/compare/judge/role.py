"""The role of a pair of calls, when all its values have a status."""

from __future__ import annotations

import math

from tensorprobe.compare.judge.course import Course
from tensorprobe.compare.judge.kept_state import keeps_otherwise
from tensorprobe.compare.judge.precision import unit_roundoff
from tensorprobe.compare.judge.status import MADE_ELSEWHERE, is_explained_but_large
from tensorprobe.compare.match.argument import describe_arguments, find_changed, is_size
from tensorprobe.compare.match.pairing import PairedCall
from tensorprobe.compare.measure.noise import GAIN
from tensorprobe.compare.result import Role, ValuePair
from tensorprobe.model.name import BACKWARD, FORWARD
from tensorprobe.run.call import Call
from tensorprobe.store.slot import TensorSlot
from tensorprobe.word.layer_word import word_of
from tensorprobe.word.operation import is_a

_MOSTLY = 0.9
"""The share of elements that still agree, where a few have changed sides."""


class RoleGiver:
    """Decides what a pair is: clean, source, entered, drift, discontinuity or propagated."""

    def __init__(self, course: Course) -> None:
        self._course = course

    def decide(self, pair: PairedCall, bad_inputs: list[ValuePair], is_context_bad: bool) -> None:
        """`is_context_bad`: what else goes into it, such as the forward of a backward call, differs."""
        bad_outputs = [value for value in pair.outputs if value.is_bad]
        results = [value for value in pair.outputs if value.measurement is not None]
        has_no_effect = not bad_outputs and any(value.status == "equal" for value in results)
        if pair.role == "entered" and has_no_effect and not keeps_otherwise(pair, self._course.past.kept):
            pair.role, pair.because = "clean", ""
        if pair.role == "entered":
            return
        failed = {bool(pair.reference.failed), bool(pair.candidate.failed)}
        if len(failed) == 2 and not bad_inputs:
            error = pair.candidate.failed or pair.reference.failed
            side = "candidate" if pair.candidate.failed else "reference"
            pair.role, pair.because = "source", f"it raised an error in the {side} only: {error}"
        elif pair.blamed_before is not None:
            pair.role, pair.because = "source", f"its own code passed a different {pair.blamed_before}"
        elif self._decide_arguments(pair, bad_outputs, bad_inputs):
            pass
        elif not bad_outputs:
            pair.role = "clean" if _is_compared(pair) else "not compared"
        elif bad_inputs or is_context_bad:
            pair.role, pair.because = self._decide_downstream(pair, bad_inputs, bad_outputs)
        elif pair.is_inside_bad:
            pair.role, pair.because = "propagated", "the difference arises inside it"
        elif pair.is_framework_made and self._course.is_any_bad:
            pair.role, pair.because = "propagated", "something before it differs"
        else:
            pair.role, pair.because = self._decide_source(pair, bad_outputs)

    def _decide_arguments(self, pair: PairedCall, bad_outputs: list[ValuePair], bad_inputs: list[ValuePair]) -> bool:
        changed = _find_changed(pair, or_left_out=bool(bad_outputs and not bad_inputs))
        if not changed and bad_outputs and not bad_inputs:
            return self._decide_forward_arguments(pair)
        if not bad_outputs:
            changed = [value for value in changed if not is_size(value, (pair.reference, pair.candidate))]
        if not changed or (not bad_outputs and not _has_grown(pair)):
            return False
        pair.role, pair.because = "entered", f"called with {describe_arguments(changed)}"
        return True

    def _decide_forward_arguments(self, pair: PairedCall) -> bool:
        """A gradient that differs because the forward was called with something else, which shows only now."""
        forward = self._course.reference.pair(self._course.reference.flow.forward_of(pair.reference))
        if forward is None or any(value.is_bad for value in forward.values if value.is_tensor):
            return False
        changed = _find_changed(forward, or_left_out=True)
        if not changed:
            return False
        pair.role, pair.because = "entered", f"its forward was called with {describe_arguments(changed)}"
        return True

    def _decide_downstream(
        self, pair: PairedCall, bad_inputs: list[ValuePair], bad_outputs: list[ValuePair]
    ) -> tuple[Role, str]:
        largest = max((value.error for value in bad_inputs if value.error is not None), default=math.inf)
        for value in bad_outputs:
            if value.error is not None and value.tolerance is not None:
                explained = value.tolerance + value.scale * GAIN * largest
                if value.error > explained and not math.isinf(value.error):
                    return (
                        "drift",
                        f"the error grows from {largest:.2g} to {value.error:.2g}, more than this call explains",
                    )
        return "propagated", "its inputs differ"

    def _decide_source(self, pair: PairedCall, bad_outputs: list[ValuePair]) -> tuple[Role, str]:
        call = pair.reference
        if self._is_noisy(pair) and all(_is_discrete(call, value) for value in bad_outputs):
            return "discontinuity", "its inputs agree up to rounding, and its result is a discrete choice"
        if self._is_noisy(pair) and all(_is_at_kink(call, value) for value in bad_outputs):
            return ("discontinuity", "its inputs agree up to rounding, but lie on both sides of a jump of its gradient")
        if call.direction == BACKWARD and all(value.measurement is None for value in bad_outputs):
            forward = self._course.reference.pair(self._course.reference.flow.forward_of(call))
            if forward is not None:
                lone = self._course.candidate.lone_users(forward.candidate) + self._course.reference.lone_users(
                    forward.reference
                )
                pair.suspects = tuple(dict.fromkeys((*forward.suspects, *lone)))
            return "source", "a gradient that one run has is missing in the other"
        if call.direction == FORWARD and is_a(word_of(call), "random") and not pair.is_inside_bad:
            generators = (pair.reference.generator, pair.candidate.generator)
            if None not in generators and generators[0] != generators[1]:
                pair.is_random = True
                return "entered", "it is random, and the generator was in a different state before it"
            if generators == (None, None) and self._course.has_other_seed():
                pair.is_random = True
                return "source", "it is random and drew different numbers: did both runs use the same seed (seed_all)?"
        self._suspect_results(pair, bad_outputs)
        if pair.doubts and not pair.suspects:
            pair.suspects = pair.doubts
            names = ", ".join(found.name for found in pair.doubts[:2])
            words = "its inputs have equal statistics, its result differs"
            return "source", f"{words}; they came through {names}, which only one run calls"
        if all(is_explained_but_large(value) for value in bad_outputs):
            return "drift", "the error has grown step by step until half of the digits are lost"
        if call.kind == "saved":
            return "source", "the saved value differs"
        return "source", "its inputs agree, its result does not"

    def _is_noisy(self, pair: PairedCall) -> bool:
        """Is there rounding noise in what goes in? Into a backward call, the inputs of its forward go too."""
        forward = self._course.reference.pair(self._course.reference.flow.forward_of(pair.reference))
        inputs = [*pair.inputs, *(forward.inputs if forward is not None else ())]
        return any(value.status == "close" for value in inputs if value.is_tensor)

    def _suspect_results(self, pair: PairedCall, bad_outputs: list[ValuePair]) -> None:
        """A module may return what a call without a partner computed."""
        for value in bad_outputs:
            for side, slot in ((self._course.reference, value.reference), (self._course.candidate, value.candidate)):
                producer = side.flow.producer(slot) if isinstance(slot, TensorSlot) else None
                if producer is not None and not pair.suspects:
                    pair.suspects = side.suspects(producer)


def _is_discrete(call: Call, value: ValuePair) -> bool:
    slot = value.reference
    is_whole = isinstance(slot, TensorSlot) and unit_roundoff(slot.dtype) is None
    return is_whole or is_a(word_of(call), "steps")


def _is_at_kink(call: Call, value: ValuePair) -> bool:
    """A gradient that differs in a few elements, of an operation whose gradient is not continuous."""
    if call.direction != BACKWARD or not is_a(word_of(call), "kinks") or value.measurement is None:
        return False
    share = value.measurement.within_1e_3
    return share is None or share >= _MOSTLY


def _is_compared(pair: PairedCall) -> bool:
    """Is anything known of what came out of it, or, where nothing does, of what went in?"""
    results = [value for value in pair.outputs if value.is_tensor and value.reason != MADE_ELSEWHERE] or pair.values
    return not results or any(value.status in ("equal", "close") for value in results)


def _has_grown(pair: PairedCall) -> bool:
    """Is there more error in what came out than in what went in? A view has as much."""
    inputs = max((value.error or 0.0 for value in pair.inputs), default=0.0)
    outputs = [value for value in pair.outputs if value.is_tensor]
    if not any(value.status in ("equal", "close", "different") for value in outputs):
        return True  # nothing else is known of the call
    return any((value.error or 0.0) > inputs * 1.001 for value in outputs)


def _find_changed(pair: PairedCall, or_left_out: bool) -> list[ValuePair]:
    return find_changed([value for value in pair.inputs if value.measurement is None], or_left_out)
