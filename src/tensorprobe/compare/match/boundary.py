"""The slots at which two groups of calls are held against each other: what comes from outside, and what leaves.

An outside value that a group takes in several times counts once. Values that only one side takes in, such as a mask
that the other makes itself, have no counterpart and are left out: inside its boundary a group may do as it likes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from tensorprobe.compare.match.alignment import SlotPair
from tensorprobe.compare.measure.shape import has_same_layout
from tensorprobe.run.call import Call
from tensorprobe.store.slot import TensorSlot

Place = tuple[Call, TensorSlot]
PlacePair = tuple[Place, Place]


def pair_outside_inputs(
    reference: Sequence[Call],
    candidate: Sequence[Call],
    is_partner: Callable[[str, str], bool],
    is_one_layer: bool = False,
) -> list[PlacePair]:
    """Values that both groups take from the same producers, or from none; of several, those that are most alike.

    `is_one_layer`: what is left over of one shape was made by others, and is the same argument.
    """
    left = _outside_inputs(candidate)
    pairs: list[PlacePair] = []
    lone: list[Place] = []
    for place in _outside_inputs(reference):
        fitting = [other for other in left if _comes_from_same(place[1], other[1], is_partner)]
        if fitting:
            # max keeps the first of equals: the order of the arguments
            best = max(fitting, key=lambda other: _content(other[1]) == _content(place[1]))
            left.remove(best)
            pairs.append((place, best))
        elif place[1].source is not None:
            lone.append(place)
    made = [other for other in left if other[1].source is not None]
    if is_one_layer and len(lone) == len(made) == 1 and has_same_layout(lone[0][1], made[0][1]):
        pairs.append((lone[0], made[0]))
    return pairs


def boundary_slots(inputs: Sequence[PlacePair], exits: Sequence[tuple[Call, Call]]) -> list[SlotPair]:
    """Forward: the inputs, and the results of the calls at the end."""
    pairs: list[SlotPair] = [(place[1], other[1]) for place, other in inputs]
    pairs.extend((result, other) for (_, result), (_, other) in pair_results(exits))
    return pairs


def pair_results(exits: Sequence[tuple[Call, Call]]) -> list[PlacePair]:
    """The results at the ends: in their order, or, where a call has several and its counterpart one, those alike."""
    pairs: list[PlacePair] = []
    for call, other_call in exits:
        used = {id(slot) for pair in pairs for _, slot in pair}
        results, other_results = (
            [slot for slot in one.tensors if not slot.is_input and id(slot) not in used] for one in (call, other_call)
        )
        if len(results) > len(other_results) > 0:
            results = [min(results, key=lambda slot: _distance(slot, other_results[0]))]
        elif len(other_results) > len(results) > 0:
            other_results = [min(other_results, key=lambda slot: _distance(slot, results[0]))]
        both = zip(results, other_results, strict=False)
        pairs.extend(((call, result), (other_call, other)) for result, other in both)
    return pairs


def _distance(one: TensorSlot, other: TensorSlot) -> float:
    """How far two values are apart, as far as their statistics tell; 0 where they tell nothing."""
    if one.shape != other.shape:
        return math.inf
    total = 0.0
    for name in ("max", "min", "mean", "norm"):
        first, second = getattr(one, name), getattr(other, name)
        if first is not None and second is not None and math.isfinite(first) and math.isfinite(second):
            total += abs(first - second)
    return total


def backward_boundary_slots(
    inputs: Sequence[PlacePair],
    exits: Sequence[tuple[Call, Call]],
    backward_of: Callable[[Call], Call | None],
    other_backward_of: Callable[[Call], Call | None],
    uses: tuple[Counter[Hashable], Counter[Hashable]],
) -> list[SlotPair]:
    """Backward: the gradients of the results, and of those inputs that each side uses once.

    Where a value is used several times, each use has a share of its gradient, and one share is not the other's whole.
    """
    pairs: list[SlotPair] = []
    for (call, result), (other_call, other_result) in pair_results(exits):
        gradient = _gradient_of(backward_of(call), result)
        other_gradient = _gradient_of(other_backward_of(other_call), other_result)
        if gradient is not None and other_gradient is not None:
            pairs.append((gradient, other_gradient))
    for place, other in inputs:
        if uses[0][_identity(place[1])] == 1 == uses[1][_identity(other[1])]:
            gradient = _gradient_of(backward_of(place[0]), place[1])
            other_gradient = _gradient_of(other_backward_of(other[0]), other[1])
            if gradient is not None and other_gradient is not None:
                pairs.append((gradient, other_gradient))
    return pairs


def count_uses(calls: Sequence[Call]) -> Counter[Hashable]:
    """How often a group takes in each value."""
    return Counter(_identity(slot) for call in calls for slot in call.tensors if slot.is_input)


def _outside_inputs(calls: Sequence[Call]) -> list[Place]:
    names = {call.name for call in calls}
    made = {_content(slot) for call in calls for slot in call.tensors if not slot.is_input}
    found: dict[Hashable, Place] = {}
    for call in calls:
        for slot in call.tensors:
            # A dump that does not tell producers: what a member has made is known by its content.
            is_made = slot.source in names if slot.source is not None else _content(slot) in made
            if slot.is_input and not is_made and not _may_be_transposed(slot):
                found.setdefault(_identity(slot), (call, slot))
    return list(found.values())


def _may_be_transposed(slot: TensorSlot) -> bool:
    """A square matrix that nothing recorded made: a weight, which linear takes as it is and matmul transposed."""
    shape = slot.shape
    return slot.source is None and shape is not None and len(shape) in (2, 3) and shape[-1] == shape[-2] > 1


def _comes_from_same(reference: TensorSlot, candidate: TensorSlot, is_partner: Callable[[str, str], bool]) -> bool:
    if not has_same_layout(reference, candidate) or (reference.source is None) != (candidate.source is None):
        return False
    if reference.source is None or candidate.source is None:
        return True
    return is_partner(reference.source, candidate.source)


def _gradient_of(backward: Call | None, slot: TensorSlot) -> TensorSlot | None:
    """Where the gradient of an argument leaves a backward call, or that of a result goes into it."""
    wanted = slot.slot
    if not slot.is_input:
        wanted = slot.slot.replace("output", "input", 1)
    elif slot.slot.startswith("input."):
        wanted = slot.slot.replace("input", "output", 1)
    tensors = backward.tensors if backward is not None else []
    return next((one for one in tensors if one.slot == wanted and one.is_input != slot.is_input), None)


def _content(slot: TensorSlot) -> Hashable:
    if slot.checksum is None and slot.max is None:
        return id(slot)  # nothing is known: like no other
    return slot.shape, slot.checksum, slot.max, slot.min, slot.mean, slot.norm


def _identity(slot: TensorSlot) -> Hashable:
    return slot.source, _content(slot)
