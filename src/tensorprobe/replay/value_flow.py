"""Who made each value of a program, and who used it: by the numbers of tensors, through in-place writes.

A tensor that is written in place holds a new value afterwards. Where it is written through another tensor of the same
memory, what its users give back reaches its maker by ways that no record shows: such values are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tensorprobe.replay.argument import Leaf
from tensorprobe.replay.program import WRITTEN, Operation, Program


@dataclass(eq=False, slots=True)
class FlowValue:
    """One content of one tensor."""

    maker: Operation
    leaf: Leaf
    """Where it came out."""
    uses: list[tuple[Operation, Leaf]] = field(default_factory=list)


def iter_values(program: Program) -> Iterator[FlowValue]:
    """The floating-point values that calls made, with all that use them; without those in memory that is written to, or
    looked at through a view that nobody recorded."""
    current: dict[int, FlowValue] = {}
    values: list[FlowValue] = []
    unclear: set[int] = set()
    for operation in program.calls():
        if not operation.has_ended or operation.inside is not None:
            continue
        passed = find_passed(operation)
        for leaf in operation.inputs:
            if leaf.tensor in passed:
                continue
            if leaf.tensor in current:
                current[leaf.tensor].uses.append((operation, leaf))
            elif leaf.storage is not None:  # a view that no recorded call made: `.T`
                unclear.add(leaf.storage)
        for leaf in operation.outputs:
            if leaf.storage is not None and (operation.writes_in_place or leaf.slot.startswith(WRITTEN)):
                unclear.add(leaf.storage)
            if leaf.tensor is not None and leaf.is_floating and leaf.tensor not in passed:
                current[leaf.tensor] = FlowValue(operation, leaf)
                values.append(current[leaf.tensor])
    return (value for value in values if value.leaf.storage not in unclear)


def find_passed(operation: Operation) -> set[int]:
    """The tensors that a call returns as it was given them, like a `to` that has nothing to do: it neither uses nor
    makes them."""
    if operation.writes_in_place:
        return set()
    given = {leaf.tensor for leaf in operation.inputs}
    return {leaf.tensor for leaf in operation.outputs if leaf.tensor is not None and leaf.tensor in given}
