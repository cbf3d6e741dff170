"""What a call keeps from one step to the next and no gradient trains: running statistics, moving averages, counts.

No result of a step need show it, but the step has written it: as the parameters after an update, it is something that a
step is for. It is seen at the start of the next step, where the call finds it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from tensorprobe.compare.match.alignment import find_holder
from tensorprobe.compare.match.pairing import PairedCall
from tensorprobe.compare.result import ValuePair
from tensorprobe.run.call import Call
from tensorprobe.store.slot import Slot, TensorSlot
from tensorprobe.word.vocabulary import name_buffer

_BUFFER = "buffers."
_SAME = ("equal", "close")

Kept = Set[tuple[str, str]]
"""The reference's calls, and the places in them of what they keep."""


def is_kept(pair: PairedCall, value: ValuePair) -> bool:
    """Does one run say that the call finds there what it left there, and the other run nothing else? Where several
    calls stand against one, places are paired by guesses."""
    sides = (value.reference, pair.match.reference), (value.candidate, pair.match.candidate)
    if not value.is_input or any(_is_trained(slot) for slot, _ in sides):
        return False
    names = {_name_argument(slot, calls) for slot, calls in sides} - {None}
    return len(names) == 1 or (not names and any(_is_held(slot) for slot, _ in sides))


def find_kept(pairs: Iterable[PairedCall]) -> Kept:
    """What calls found to be the same in both runs, where they were given the same. What was given something else keeps
    something else, which is no mistake of its own."""
    found: set[tuple[str, str]] = set()
    for pair in pairs:
        kept = [value for value in pair.inputs if is_kept(pair, value)]
        if kept and _is_given_same(pair):
            found.update((pair.reference.name, value.slot) for value in kept if value.status in _SAME)
    return found


def keeps_otherwise(pair: PairedCall, kept: Kept) -> bool:
    """Has the step before written something else there than in the other run, out of the same? `kept`: what both found
    in that step. What no step writes to (a table, a mask) differs from the start, and what has grown to another size is
    a table: these count only by their effect."""
    differing = [value for value in pair.inputs if value.is_bad and _has_one_size(value)]
    return any(is_kept(pair, value) for value in differing if (pair.reference.name, value.slot) in kept)


def _has_one_size(value: ValuePair) -> bool:
    sizes = {slot.element_count for slot in (value.reference, value.candidate) if isinstance(slot, TensorSlot)}
    return len(sizes) == 1


def _is_held(slot: Slot | None) -> bool:
    """A buffer of a module, or a parameter that is not trained."""
    if not isinstance(slot, TensorSlot) or slot.source is not None:
        return False
    return slot.slot.startswith(_BUFFER) or (slot.parameter is not None and slot.requires_grad is False)


def _is_trained(slot: Slot | None) -> bool:
    return isinstance(slot, TensorSlot) and slot.requires_grad is True


def _name_argument(slot: Slot | None, calls: tuple[Call, ...]) -> str | None:
    """What a function calls the buffer that it is given; None for all else."""
    if not isinstance(slot, TensorSlot) or slot.source is not None:
        return None
    return name_buffer(find_holder(calls, slot), slot.slot)


def _is_given_same(pair: PairedCall) -> bool:
    given = [value for value in pair.inputs if value.is_tensor and not is_kept(pair, value)]
    compared = [value for value in given if None not in (value.reference, value.candidate)]
    return bool(compared) and all(value.status in _SAME for value in compared)
