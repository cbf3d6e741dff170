"""Which slot of a call is held against which slot of its partner: by name, then what is left by kind and shape.

An argument may be given by position in one run and by keyword in the other, it may have another name or another place
in the other framework, a parameter too, and msprobe lists gradients in the order of autograd. One number may stand for
all of a sequence: `stride=1`, `stride=(1, 1)`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tensorprobe.compare.match.alignment import Alignment, Match, SlotPair
from tensorprobe.model.name import BACKWARD, is_index
from tensorprobe.run.call import Call
from tensorprobe.store.slot import PlainSlot, Slot, TensorSlot
from tensorprobe.word.vocabulary import common_argument, common_slot

_PARTS = frozenset({"input", "output", "parameters", "buffers"})
_STATE = ("parameters.", "buffers.")

Partners = Mapping[str, str]
"""Slots of the reference's call and those of the candidate's that a mapping file wants against them."""


def pair_slots(
    reference: Call, candidate: Call, mapped: Partners | None = None, by_shape: bool = False
) -> list[SlotPair]:
    """In the order of the reference's slots; then those that only the candidate has.

    `by_shape`: the results of a backward call are listed in different orders, because only one of the two dumps is
    msprobe's; they are paired by their shapes.
    """
    is_by_shape = by_shape and reference.direction == BACKWARD and reference.kind == "api"
    if not mapped and not is_by_shape and _have_same_slots(reference, candidate):
        return list(zip(reference.slots, candidate.slots, strict=True))
    left = {slot.slot: slot for slot in candidate.slots}
    chosen: dict[str, Slot] = {}
    for slot in reference.slots:
        wanted = (mapped or {}).get(slot.slot)
        if wanted is not None and wanted in left:
            chosen[slot.slot] = left.pop(wanted)
    if is_by_shape:
        _pair_gradients(reference, left, chosen)
    is_one_function = _is_one_function(reference, candidate)
    if not is_one_function:  # otherwise the same place is the same argument
        _pair_common_names(reference, candidate, left, chosen)
    for slot in reference.slots:
        other = left.get(slot.slot)
        if slot.slot in chosen or other is None or other.is_input != slot.is_input:
            continue
        if is_one_function or not _are_other_arguments(reference, candidate, slot, other):
            chosen[slot.slot] = left.pop(slot.slot)
    if is_one_function and left and len(chosen) < len(reference.slots):
        _pair_common_names(reference, candidate, left, chosen)
    for slot in reference.slots:
        if slot.slot not in chosen:
            is_saved = reference.kind == "saved"
            found = next((name for name, other in left.items() if _may_stand_for(slot, other, is_saved)), None)
            if found is not None:
                chosen[slot.slot] = left.pop(found)
    pairs: list[SlotPair] = [(slot, chosen.get(slot.slot)) for slot in reference.slots]
    pairs.extend((None, slot) for slot in left.values())
    pairs = [pair for pair in pairs if None not in pair or not any(map(_is_setting, pair))]
    return _pair_elements(reference, candidate, pairs)


def _is_one_function(reference: Call, candidate: Call) -> bool:
    return (
        reference.op == candidate.op
        and reference.prefix == candidate.prefix
        and reference.framework == candidate.framework
    )


def _have_same_slots(reference: Call, candidate: Call) -> bool:
    """Nearly all pairs: the same function was given and returned as much, under the same names, each once."""
    slots, others = reference.slots, candidate.slots
    if len(slots) != len(others) or not _is_one_function(reference, candidate):
        return False
    for slot, other in zip(slots, others, strict=True):
        if slot.slot != other.slot or slot.is_input != other.is_input:
            return False
    return len({slot.slot for slot in slots}) == len(slots)


def common_name(call: Call, slot: Slot) -> str:
    """A slot in PyTorch's words: an argument by its keyword, a parameter by its name there."""
    name = common_slot(call.framework, slot.slot)
    if call.kind == "api" and name.startswith(_STATE):  # of a layer: what its function takes by this name
        return f"kwargs.{name.partition('.')[2]}"
    if name != slot.slot:
        return name
    return common_argument(call, name, isinstance(slot, PlainSlot) and isinstance(slot.value, list))


def _pair_common_names(reference: Call, candidate: Call, left: dict[str, Slot], chosen: dict[str, Slot]) -> None:
    """`parameters.gamma`, `parameters.weight`: frameworks name them otherwise, and so do nn and mint of MindSpore."""
    names = {(common_name(candidate, slot), slot.is_input): name for name, slot in left.items()}
    for slot in reference.slots:
        name = names.get((common_name(reference, slot), slot.is_input))
        if slot.slot not in chosen and name in left:
            chosen[slot.slot] = left.pop(name)


def _are_other_arguments(reference: Call, candidate: Call, one: Slot, other: Slot) -> bool:
    """Do both slots, in the same place, have a name, and the names say that it is not the same argument?"""
    names = common_name(reference, one), common_name(candidate, other)
    return names[0] != one.slot and names[1] != other.slot


def _pair_elements(reference: Call, candidate: Call, pairs: list[SlotPair]) -> list[SlotPair]:
    """One plain value that stands for all elements of a sequence is held against each of them."""
    if all(None not in pair for pair in pairs):
        return pairs
    whole = [
        {common_name(call, slot): slot for slot in call.slots if isinstance(slot, PlainSlot) and slot.is_input}
        for call in (reference, candidate)
    ]
    found: list[SlotPair] = []
    used: set[int] = set()
    for one, other in pairs:
        if isinstance(one, PlainSlot) and other is None:
            other = whole[1].get(common_name(reference, one).rpartition(".")[0])
            used.add(id(other))
        elif isinstance(other, PlainSlot) and one is None:
            one = whole[0].get(common_name(candidate, other).rpartition(".")[0])
            used.add(id(one))
        found.append((one, other))
    return [pair for pair in found if None not in pair or not used & set(map(id, pair)) - {id(None)}]


def _pair_gradients(reference: Call, left: dict[str, Slot], chosen: dict[str, Slot]) -> None:
    for slot in reference.slots:
        if isinstance(slot, TensorSlot) and not slot.is_input and slot.slot not in chosen:
            for name, other in left.items():
                if isinstance(other, TensorSlot) and not other.is_input and other.shape == slot.shape:
                    chosen[slot.slot] = left.pop(name)
                    break


def _may_stand_for(reference: Slot, candidate: Slot, is_saved: bool) -> bool:
    """Under another name: the same part of the call, the same kind of value."""
    if is_saved and _have_other_keys(reference.slot, candidate.slot):
        return False
    if reference.is_input != candidate.is_input or _part(reference) != _part(candidate) or _is_setting(reference):
        return False
    if isinstance(reference, TensorSlot) and isinstance(candidate, TensorSlot):
        return reference.shape == candidate.shape
    if isinstance(reference, PlainSlot) and isinstance(candidate, PlainSlot):
        return reference.type == candidate.type and reference.value == candidate.value
    return False


def _have_other_keys(reference: str, candidate: str) -> bool:
    """Are both in a dict of the program's, under keys that are not the same?

    >>> _have_other_keys("loss", "total"), _have_other_keys("0", "loss"), _have_other_keys("a.0", "a.1")
    (True, False, False)
    """
    paths = zip(reference.split("."), candidate.split("."), strict=False)
    first = next(((one, other) for one, other in paths if one != other), ("", ""))
    return all(key and not is_index(key) for key in first)


def _is_setting(slot: Slot | None) -> bool:
    """What a primitive was made with says something only beside another primitive of its kind."""
    return slot is not None and slot.slot.startswith("settings.")


def _part(slot: Slot) -> str:
    """Arguments, results, parameters, buffers or their gradients; by position or by keyword is the same."""
    part = slot.slot.partition(".")[0]
    if part == "kwargs":
        return "input" if slot.is_input else "output"
    return part if part in _PARTS else "gradients"


def pair_match_slots(match: Match, alignment: Alignment) -> list[SlotPair]:
    """What to compare of a match: all slots of two calls; of groups, what goes into them and what leaves them."""
    if match.is_group or match.boundary:
        return list(match.boundary)
    reference, candidate = match.reference[0], match.candidate[0]
    return pair_slots(
        reference, candidate, alignment.slots.get(reference.name), by_shape=not alignment.has_same_gradient_order
    )
