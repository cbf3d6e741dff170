"""Saved values that differ although all observables of two steps have the same truth. Of integers, booleans, what is no
tensor and what only one run has saved, a replay says nothing: truth is about floating-point numbers that recorded calls
compute. And a value that both runs compute may be saved under another name."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorprobe.compare.judge.precision import unit_roundoff
from tensorprobe.compare.match.pairing import PairedCall
from tensorprobe.compare.result import ValuePair
from tensorprobe.compare.truth.judgement import Judgement
from tensorprobe.replay.true_step import TrueStep
from tensorprobe.store.slot import PlainSlot, Slot, TensorSlot


def has_unseen_difference(pairs: Sequence[PairedCall], judgement: Judgement) -> bool:
    """Does a saved value differ in a way that is not rounding?"""
    saved = [value for pair in pairs if pair.reference.kind == "saved" for value in pair.values]
    bad = [value for value in saved if value.is_bad]
    return any(_is_unseen(value, judgement.coarsest) or _has_other_truth(value, judgement) for value in bad)


def _has_other_truth(value: ValuePair, judgement: Judgement) -> bool:
    """Is it known to be the result of calls that mean different things?"""
    first = _find_result(value.reference, judgement.steps["reference"])
    second = _find_result(value.candidate, judgement.steps["candidate"])
    return first is not None and second is not None and judgement.is_same_value(first, second) is False


def _find_result(slot: Slot | None, step: TrueStep) -> tuple[str, str] | None:
    """The call and the place of the result that was saved; None where it is not the only one of its size."""
    call = step.calls.get(slot.source or "") if isinstance(slot, TensorSlot) else None
    if call is None or not isinstance(slot, TensorSlot):
        return None
    places = [place for place, number in call.outputs.items() if step.values[number].array.size == slot.element_count]
    return (call.name, places[0]) if len(places) == 1 else None


def _is_unseen(value: ValuePair, coarsest: float) -> bool:
    first, second = value.reference, value.candidate
    if isinstance(first, TensorSlot) and isinstance(second, TensorSlot):
        return all(unit_roundoff(slot.dtype) is None for slot in (first, second))
    if not isinstance(first, PlainSlot) or not isinstance(second, PlainSlot):
        return True
    if not isinstance(first.value, float) or not isinstance(second.value, float):
        return True
    return not math.isclose(first.value, second.value, rel_tol=math.sqrt(coarsest))  # loss.item() has its rounding
