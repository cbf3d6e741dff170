"""What is known of the calls that may belong to a group: who they take from, what they return, where they lie."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tensorprobe.compare.match.fingerprint import UNKNOWN_VALUE
from tensorprobe.compare.match.idle import passes_on
from tensorprobe.compare.match.side import Side
from tensorprobe.compare.measure.shape import Shape
from tensorprobe.run.module_tree import ModuleNode
from tensorprobe.store.slot import TensorSlot

MAX_WRITTEN_OUT = 4096
"""Of a recurrent layer that the other run computes in a few calls: each layer, direction and step has its own."""
_MAX_SPAN = 10_000


def free_calls(side: Side, partner: Mapping[int, int]) -> set[int]:
    return {number for number in side.forward if side.calls[number].kind == "api" and number not in partner}


def free_runs(side: Side, partner: Mapping[int, int]) -> Iterator[tuple[int, tuple[list[int], int]]]:
    """The pair before a run of free calls, the run, and the pair after it; -1 at the edges."""
    before, run = -1, []
    for number in side.forward:
        if side.calls[number].kind != "api":
            continue
        if number not in partner:
            run.append(number)
            continue
        if run:
            yield before, (run, number)
        before, run = number, []
    if run:
        yield before, (run, -1)


def closure(side: Side, start: int, free: set[int]) -> set[int]:
    """A call and the free calls that its inputs come from."""
    members = {start}
    waiting = [start]
    while waiting and len(members) <= MAX_WRITTEN_OUT:
        for source in side.sources(waiting.pop()):
            if source in free and source not in members:
                members.add(source)
                waiting.append(source)
    return members | side_branches(side, members, free)


def side_branches(side: Side, members: set[int], free: set[int]) -> set[int]:
    """Free calls between the first and the last that use what the group makes: a dropout that drops nothing."""
    found: set[int] = set()
    first, last = min(members), max(members)
    if last - first > _MAX_SPAN:
        return found
    for number in range(first + 1, last):
        is_other = number in free and number not in members
        if is_other and any(source in members or source in found for source in side.sources(number)):
            found.add(number)
    return found


def sources_of(side: Side, members: set[int]) -> list[int]:
    """The calls outside of a group that it takes values from, in the order in which it does."""
    found = (source for number in sorted(members) for source in side.sources(number))
    return [source for source in dict.fromkeys(found) if source >= 0 and source not in members]


def last_made(side: Side, number: int, members: set[int]) -> int:
    """The member that made what the last ones only pass on."""
    while passes_on(side.calls[number]):
        source = next(iter(side.sources(number)), -1)
        if source not in members or source >= number:
            break
        number = source
    return number


def leaf_shapes(side: Side, members: set[int]) -> Iterator[Shape]:
    for number in members:
        for slot in side.calls[number].slots:
            if isinstance(slot, TensorSlot) and slot.is_input and slot.source is None:
                yield slot.shape


def result_shape(side: Side, number: int) -> Shape:
    results = result_shapes(side, number)
    return results[0] if results else None


def result_shapes(side: Side, number: int) -> list[Shape]:
    return [slot.shape for slot in side.calls[number].tensors if not slot.is_input]


def result_value(side: Side, number: int) -> int:
    """The value of its first result, as a number that means the same on both sides."""
    tensors = side.calls[number].tensors
    place = next((place for place, slot in enumerate(tensors) if not slot.is_input), None)
    return UNKNOWN_VALUE if place is None else side.fingerprint(number).values[place]


def first_shape(side: Side, number: int) -> Shape:
    inputs = [slot.shape for slot in side.calls[number].tensors if slot.is_input]
    return inputs[0] if inputs else None


def common_module(side: Side, members: set[int], matched: Collection[ModuleNode]) -> ModuleNode:
    """The innermost matched module that contains all members."""
    ways = [side.node(number).way_up() for number in sorted(members)]
    common = set(ways[0]).intersection(*ways[1:])
    return next(node for node in ways[0] if node in common and (node in matched or node.parent is None))
