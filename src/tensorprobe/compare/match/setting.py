"""What two calls were made with, where one record stands for several calls: a layer's epsilon is an argument of the
function that it calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tensorprobe.compare.match.alignment import SlotPair
from tensorprobe.compare.match.argument import Calls
from tensorprobe.compare.match.slot_pair import common_name, pair_slots
from tensorprobe.compare.match.value import make_value
from tensorprobe.compare.result import ValuePair
from tensorprobe.run.call import Call
from tensorprobe.store.slot import PlainSlot, Slot
from tensorprobe.word.spelling import canonical_op


def make_values(pairs: Sequence[SlotPair], calls: Calls) -> list[ValuePair]:
    """The slots of two calls against each other, and what the calls inside them were given that is no tensor."""
    values = [make_value(*slots, calls) for slots in pairs]
    if not any(call.parts for call in calls):
        return values
    if not all(call.parts for call in calls):  # a layer against a function: its arguments are those of the call inside
        values = [value for value in values if value.is_tensor or not value.is_input]
    return [*values, *_iter_settings(calls)]


def _iter_settings(calls: Calls) -> Iterator[ValuePair]:
    for parts in _pair_parts(*calls):
        for first, second in pair_slots(*parts):
            value = make_value(first, second, parts)
            if value.is_input and not value.is_tensor:
                yield replace(value, reference=_rename(first, parts[0]), candidate=_rename(second, parts[1]))


def _pair_parts(reference: Call, candidate: Call) -> Iterator[Calls]:
    """The calls inside both that do the same, if each makes as many of them."""
    listed = [call.parts or (call,) for call in (reference, candidate)]
    for word in dict.fromkeys(map(canonical_op, listed[0])):
        first, second = ([part for part in parts if canonical_op(part) == word] for parts in listed)
        if len(first) == len(second):
            yield from zip(first, second, strict=True)


def _rename(slot: Slot | None, part: Call) -> Slot | None:
    """By its keyword: the place that it has in the call inside is no place of the layer."""
    if not isinstance(slot, PlainSlot):
        return slot
    name = common_name(part, slot).removeprefix("kwargs.").removeprefix("settings.")
    return replace(slot, slot=f"settings.{name}")
