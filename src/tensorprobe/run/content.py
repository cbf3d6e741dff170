"""By which numbers a recorded tensor is known again, in another slot of the same run."""

from __future__ import annotations

from tensorprobe.store.slot import TensorSlot


def numbers_of(slot: TensorSlot) -> tuple[object, ...]:
    """How many elements it has and their statistics, whatever its shape; its checksum, which may cover the shape, only
    where there are no statistics."""
    checksum = slot.checksum if slot.max is None else None
    return slot.element_count, slot.max, slot.min, slot.mean, slot.norm, checksum
