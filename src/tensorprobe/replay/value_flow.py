"""Who made each value of a program, and who used it: by the numbers of tensors, through in-place writes.

A tensor that is written in place holds a new value afterwards. Where it is written through another tensor of the same
memory, what its users give back reaches its maker by ways that no record shows: such values are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tensorprobe.replay.program import Operation, Program
from tensorprobe.run.leaf import WRITTEN, Leaf


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
            known = _find_shown(current, leaf)
            if known is not None:
                known.uses.append((operation, leaf))
            elif leaf.storage is not None:  # a view that no recorded call made: `.T`
                unclear.add(leaf.storage)
        for leaf in operation.outputs:
            if leaf.storage is not None and (operation.writes_in_place or leaf.slot.startswith(WRITTEN)):
                unclear.add(leaf.storage)
            if leaf.tensor is not None and leaf.is_floating and leaf.tensor not in passed:
                current[leaf.tensor] = FlowValue(operation, leaf)
                values.append(current[leaf.tensor])
    return (value for value in values if value.leaf.storage not in unclear)


def _find_shown(current: Mapping[int, FlowValue], leaf: Leaf) -> FlowValue | None:
    """The value that a tensor shows, as it is; a module with hooks makes another tensor of it."""
    if leaf.tensor is not None and leaf.tensor in current:
        return current[leaf.tensor]
    base = None if leaf.view_of is None else current.get(leaf.view_of)
    return base if base is not None and base.leaf.layout == leaf.layout else None


def leaf_uses(program: Program) -> dict[int, list[tuple[Operation, Leaf]]]:
    """The calls that are given each tensor that nobody made, by its number; without those in memory that is written to,
    or looked at through another tensor that needs gradients and that no recorded call made."""
    made: set[int] = set()
    found: dict[int, list[tuple[Operation, Leaf]]] = {}
    owners: dict[int, set[int]] = {}
    unclear: set[int] = set()
    for operation in program.calls():
        if not operation.has_ended or operation.inside is not None:
            continue
        passed = find_passed(operation)
        for leaf in operation.inputs:
            if leaf.tensor is None or leaf.tensor in passed or not leaf.requires_grad or leaf.tensor in made:
                continue
            found.setdefault(leaf.tensor, []).append((operation, leaf))
            owners.setdefault(leaf.storage or 0, set()).add(leaf.tensor)
        for leaf in operation.outputs:
            if leaf.storage is not None and (operation.writes_in_place or leaf.slot.startswith(WRITTEN)):
                unclear.add(leaf.storage)
            if leaf.tensor is not None and leaf.tensor not in passed:
                made.add(leaf.tensor)
    unclear |= {storage for storage, tensors in owners.items() if len(tensors) > 1}
    return {number: uses for number, uses in found.items() if uses[0][1].storage not in unclear}


def find_passed(operation: Operation) -> set[int]:
    """The tensors that a call returns as it was given them, like a `to` that has nothing to do: it neither uses nor
    makes them."""
    if operation.writes_in_place:
        return set()
    given = {leaf.tensor for leaf in operation.inputs}
    return {leaf.tensor for leaf in operation.outputs if leaf.tensor is not None and leaf.tensor in given}
