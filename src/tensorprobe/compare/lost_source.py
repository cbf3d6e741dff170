"""Where a value came from, when the dump has lost sight of it.

MindSpore hands out a new object for a tensor now and then, for example when a cell checks its arguments: capture then
does not know any more which call made it. What has the shape and all statistics of an earlier result is that result.
And a tensor that a program makes of its data has a source in PyTorch, `torch.tensor`, and none in MindSpore.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace

from tensorprobe.compare.match.idle import makes_data
from tensorprobe.model.name import FORWARD
from tensorprobe.run.call import Call
from tensorprobe.store.slot import Slot, TensorSlot


def restore_sources(calls: Iterable[Call]) -> None:
    """In place: inputs of forward calls that name no source get that of the latest call which returned the same."""
    latest: dict[Hashable, str] = {}
    for call in calls:
        if call.direction == FORWARD:
            call.slots = tuple(_restore(slot, latest) for slot in call.slots)
            if call.kind == "api":
                given = {_content(slot) for slot in call.slots if slot.is_input}
                for slot in call.slots:
                    content = None if slot.is_input else _content(slot)
                    if content is not None and content not in given:
                        latest[content] = call.name


def forget_data_calls(calls: Iterable[Call]) -> None:
    """In place: what a program made of its data comes from no call."""
    makers: set[str | None] = set()
    for call in calls:
        if makes_data(call):
            makers.add(call.name)
        elif makers:
            call.slots = tuple(_forget(slot, makers) for slot in call.slots)


def _forget(slot: Slot, makers: set[str | None]) -> Slot:
    return replace(slot, source=None) if isinstance(slot, TensorSlot) and slot.source in makers else slot


def _restore(slot: Slot, latest: dict[Hashable, str]) -> Slot:
    if not isinstance(slot, TensorSlot) or not slot.is_input or slot.source is not None:
        return slot
    content = None if slot.slot.startswith(("parameters.", "buffers.")) else _content(slot)
    source = None if content is None else latest.get(content)
    return slot if source is None else replace(slot, source=source)


def _content(slot: Slot) -> Hashable:
    """None where it tells no tensor from another: a scalar, a constant, nothing known."""
    if not isinstance(slot, TensorSlot) or slot.max is None or slot.max == slot.min or (slot.element_count or 0) < 2:
        return None
    return slot.dtype, slot.shape, slot.max, slot.min, slot.mean, slot.norm
