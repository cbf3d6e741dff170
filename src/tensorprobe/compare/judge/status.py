"""The status of one pair of tensors: equal, close or different, against what is explained."""

from __future__ import annotations

import math

from tensorprobe.compare.judge import tolerance
from tensorprobe.compare.judge.precision import unit_roundoff
from tensorprobe.compare.option import CompareOptions
from tensorprobe.compare.result import ValuePair
from tensorprobe.model.dtype import short_dtype
from tensorprobe.model.undefined import UNDEFINED_MEMORY
from tensorprobe.store.slot import TensorSlot

MADE_ELSEWHERE = "the two modules end at different calls"
DISSOLVED = "it differs, but everything computed from it agrees: not a pair"
STRUCTURE_ONLY = "no values were recorded"
_WITHOUT_NUMBERS = frozenset(
    (
        *("meta tensor", "fake tensor", "not initialized", "not yet initialised", "memory not allocated"),
        *("inside a function transform", "result of an asynchronous collective, not waited for yet"),
    )
)
"""What capture says of a tensor that has no numbers, or none yet; not that it failed to read them."""


def leave_undefined(value: ValuePair) -> None:
    """What `empty` returns means nothing: it is never compared."""
    leave_out(value, UNDEFINED_MEMORY)


def leave_out(value: ValuePair, reason: str) -> None:
    """It was measured, and that says nothing."""
    value.status, value.reason, value.is_mismatch = "not comparable", reason, False


def is_unknown(value: ValuePair) -> bool:
    """Did both runs record this tensor, and does nothing say whether it is the same?

    What means nothing, or has no numbers in either run, is no such value.
    """
    if value.status != "not comparable" or value.is_mismatch or value.measurement is None:
        return False
    if value.reason in (UNDEFINED_MEMORY, MADE_ELSEWHERE, DISSOLVED):
        return False
    slots = value.reference, value.candidate
    return not all(isinstance(slot, TensorSlot) and slot.reason in _WITHOUT_NUMBERS for slot in slots)


def settle(
    value: ValuePair, explained: tolerance.Explained, options: CompareOptions, coarsest: float | None = None
) -> None:
    """The status of one pair of tensors, against what is explained; `coarsest`: the rounding of the coarsest dtype."""
    measurement = value.measurement
    assert measurement is not None
    if measurement.problem is not None:
        value.status, value.reason = "not comparable", value.reason or measurement.problem
        return
    if measurement.basis == "structure" and measurement.is_equal is None:
        value.status, value.reason = "not comparable", STRUCTURE_ONLY
        return
    value.reason = measurement.fallback or ""
    value.coarsest = coarsest
    value.errors, value.tolerances, value.scale = (
        tolerance.error_of(measurement),
        explained.tolerance,
        explained.scale,
    )
    if value.errors is not None:
        value.error, value.tolerance = value.errors.worst_against(explained.tolerance)
    if measurement.is_equal:
        value.status = "equal"
    elif options.has_fixed_tolerance and measurement.basis != "checksum":
        value.tolerance, value.tolerances = None, None
        value.status = "close" if tolerance.is_within_fixed(value, options) else "different"
    else:
        value.status = "close" if _is_explained(value) else "different"
    _note_dtypes(value, options)


def _note_dtypes(value: ValuePair, options: CompareOptions) -> None:
    slots = [slot for slot in (value.reference, value.candidate) if isinstance(slot, TensorSlot)]
    if len(slots) == 2 and slots[0].dtype == slots[1].dtype:
        return
    dtypes = [short_dtype(slot.dtype) for slot in slots]
    if len(set(dtypes)) < 2 or "" in dtypes:
        return
    if value.is_across_frameworks and all(map(_is_whole, dtypes)):
        return
    reason = f"{dtypes[1]} where the reference has {dtypes[0]}"
    value.reason = f"{reason}; {value.reason}" if value.reason else reason
    is_asked = options.other_dtype and all(unit_roundoff(dtype) is not None for dtype in dtypes)
    if not options.has_fixed_tolerance and not is_asked:
        value.status = "different"


def _is_whole(dtype: str) -> bool:
    return dtype.startswith(("int", "uint"))


def _is_explained(value: ValuePair) -> bool:
    """Within the tolerance, and not half of the digits gone."""
    if value.errors is None or value.tolerances is None:
        return False
    return value.errors.is_within(value.tolerances) and not is_explained_but_large(value)


def is_explained_but_large(value: ValuePair) -> bool:
    """Rounding explains it, and yet half of the digits are gone: of those that the coarsest dtype of the run has, for
    what was computed in bfloat16 has no more digits when it is cast to float32."""
    unit = unit_roundoff(value.reference.dtype) if isinstance(value.reference, TensorSlot) else None
    if unit is not None and value.coarsest is not None:
        unit = max(unit, value.coarsest)
    if unit is None or value.errors is None or value.tolerances is None:
        return False
    return value.errors.is_within(value.tolerances) and value.errors.norm / value.scale > math.sqrt(unit)


def is_same_value(found: ValuePair, value: ValuePair) -> bool:
    """Is this input that output? Shape may change on the way (a view), numbers may not."""
    first, second = found.measurement, value.measurement
    if first is None or second is None:
        return False
    return first is second or (
        (first.is_equal, first.relative_l2, first.max_abs_error)
        == (second.is_equal, second.relative_l2, second.max_abs_error)
        and _statistics(found) == _statistics(value)
    )


def _statistics(value: ValuePair) -> tuple[object, ...]:
    slot = value.reference
    if not isinstance(slot, TensorSlot):
        return ()
    return (slot.element_count, slot.max, slot.min, slot.checksum)
