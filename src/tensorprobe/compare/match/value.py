"""One slot of a call against its counterpart, before it is measured."""

from __future__ import annotations

from tensorprobe.compare.match.argument import Calls, compare_lone, compare_said
from tensorprobe.compare.result import ValuePair
from tensorprobe.model.name import FORWARD, RECOMPUTE
from tensorprobe.store.slot import PlainSlot, Slot
from tensorprobe.word.vocabulary import is_across_frameworks


def make_value(reference: Slot | None, candidate: Slot | None, calls: Calls) -> ValuePair:
    """Plain arguments are compared at once, tensors wait for their measurement."""
    is_across = is_across_frameworks(calls[0].framework, calls[1].framework)
    if reference is None or candidate is None:
        value = compare_lone(reference, candidate, calls)
        value.is_mismatch = value.is_mismatch and _is_missed(value, calls[0].direction, is_across)
        return value
    if isinstance(reference, PlainSlot) and isinstance(candidate, PlainSlot):
        return compare_said(reference, candidate, calls)
    if isinstance(reference, PlainSlot) or isinstance(candidate, PlainSlot):
        side = "candidate" if isinstance(reference, PlainSlot) else "reference"
        reason = f"a tensor only in the {side}"
        return ValuePair(reference, candidate, "not comparable", None, reason=reason, is_mismatch=not is_across)
    return ValuePair(reference, candidate, "not comparable", None, is_across_frameworks=is_across)


def _is_missed(value: ValuePair, direction: str, is_across: bool) -> bool:
    """Is it a difference by itself that only one side has this?"""
    if value.is_input:
        return not value.is_tensor
    if is_across and (direction == FORWARD or not value.is_tensor):
        return False  # a norm returns its mean and variance too, an attention its weights, or None for them
    # A recomputation may end as soon as it has what the backward needs, before its last call returns.
    return not value.is_tensor or direction != RECOMPUTE
