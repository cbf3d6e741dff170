"""Saved values that differ and that a replay says nothing of: integers, booleans, what is no tensor, and what only one
run has saved. Truth is about floating-point numbers that recorded calls compute."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorprobe.compare.judge.precision import unit_roundoff
from tensorprobe.compare.match.pairing import PairedCall
from tensorprobe.compare.result import ValuePair
from tensorprobe.store.slot import PlainSlot, TensorSlot

_USUAL_UNIT = unit_roundoff("float32") or 0.0


def has_unseen_difference(pairs: Sequence[PairedCall]) -> bool:
    """Does a saved value differ in a way that truth cannot explain?"""
    values = [value for pair in pairs for value in pair.values]
    coarsest = max((value.coarsest or 0.0 for value in values), default=0.0) or _USUAL_UNIT
    saved = [value for pair in pairs if pair.reference.kind == "saved" for value in pair.values]
    return any(value.is_bad and _is_unseen(value, coarsest) for value in saved)


def _is_unseen(value: ValuePair, coarsest: float) -> bool:
    first, second = value.reference, value.candidate
    if isinstance(first, TensorSlot) and isinstance(second, TensorSlot):
        return all(unit_roundoff(slot.dtype) is None for slot in (first, second))
    if not isinstance(first, PlainSlot) or not isinstance(second, PlainSlot):
        return True
    if not isinstance(first.value, float) or not isinstance(second.value, float):
        return True
    return not math.isclose(first.value, second.value, rel_tol=math.sqrt(coarsest))  # loss.item() has its rounding
