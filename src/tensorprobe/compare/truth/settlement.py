"""What truth says of each pair of values and calls, in the place of what the growth of errors suggests."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tensorprobe.compare.match.pairing import PairedCall
from tensorprobe.compare.result import ValuePair
from tensorprobe.compare.truth.judgement import Judgement
from tensorprobe.run.call import Call

SAME_TRUTH = "the same without rounding"
COMPUTED_OTHERWISE = "a different value in each run, which computes it in a different way"
_ALARMS = ("source", "entered", "drift", "discontinuity")


def settle_pairs(pairs: Iterable[PairedCall], judgement: Judgement, named: Collection[str]) -> None:
    """Give each pair the role that truth gives it. `named`: the records of the verdict."""
    is_equal = judgement.is_equal
    for pair in pairs:
        for value in pair.values:
            if value.is_tensor and value.is_bad:
                _settle_value(value, is_same_value(value, (pair.reference, pair.candidate), judgement), is_equal)
        is_named = pair.reference.name in named or pair.candidate.name in named
        is_bad = any(value.is_bad for value in pair.outputs)
        if is_named or pair.is_framework_made:
            continue
        if is_equal or not is_bad:
            if pair.role != "not compared":
                pair.role, pair.because = "clean", ""
        elif pair.role in _ALARMS:
            pair.role, pair.because = "propagated", "its inputs differ"


def is_same_value(value: ValuePair, calls: tuple[Call, Call], judgement: Judgement) -> bool | None:
    """Have both tensors of two calls the same truth? None where that of one is not known."""
    if value.reference is None or value.candidate is None:
        return None
    return judgement.is_same_value((calls[0].name, value.reference.slot), (calls[1].name, value.candidate.slot))


def _settle_value(value: ValuePair, is_same: bool | None, is_equal: bool) -> None:
    if is_same:
        value.status, value.is_mismatch, value.reason = "close", False, SAME_TRUTH
    elif is_equal and value.is_mismatch:
        value.status, value.is_mismatch, value.reason = "not comparable", False, COMPUTED_OTHERWISE
    elif is_equal:
        has_truth = is_same is False
        value.status = "not comparable" if has_truth else "close"
        value.reason = COMPUTED_OTHERWISE if has_truth else SAME_TRUTH
