"""The autograd Functions of a program that communicate: how do gradients pass through them between ranks?

What a Function's backward does is seen only as far as it communicates. That is enough for a Function whose backward is
the derivative of its forward, over all ranks or over one:

- A collective of its forward whose transpose was seen in its backward (`all_gather` and `reduce_scatter`, `all_reduce`
  twice) passes gradients to all ranks. Where the backward was silent, each rank's gradient stays with it: that is how
  tensor-parallel layers treat a value that all ranks have in common.
- A collective that only the backward makes adds up the gradients of one input over ranks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tensorprobe.replay.communication import Communication, read_communications
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.spread_call import is_arranging
from tensorprobe.run.leaf import Leaf, iter_leaves

_TRANSPOSED = {
    "all_reduce": ("all_reduce",),
    "all_gather": ("reduce_scatter", "all_reduce"),
    "reduce_scatter": ("all_gather",),
    "all_to_all": ("all_to_all",),
    "broadcast": ("reduce", "all_reduce"),
    "reduce": ("broadcast",),
    "scatter": ("gather",),
    "gather": ("scatter",),
}
_ADDS_UP = ("all_reduce", "all_gather")
"""A gather of slices is a sum of what is zero outside of each slice."""


@dataclass(frozen=True)
class GradientSum:
    """The gradient of an input of a Function is added up over ranks."""

    leaf: Leaf
    """The input, as the Function got it."""
    communication: Communication


@dataclass
class FunctionFlow:
    """What is known of the Functions of one program."""

    spanning: set[str] = field(default_factory=set)
    """The collectives whose gradients go to all ranks."""
    sums: dict[str, list[GradientSum]] = field(default_factory=dict)
    """By the names of Functions."""
    communicating: set[str] = field(default_factory=set)
    """The Functions that communicate, forward or backward."""
    unclear: dict[str, str] = field(default_factory=dict)
    """Functions whose backward communicates in a way that is not understood, and what it calls."""
    entries: dict[str, str] = field(default_factory=dict)
    """For the first call inside a Function, the Function."""


def read_function_flow(program: Program) -> FunctionFlow:
    """How gradients pass through the Functions of a program."""
    flow = FunctionFlow()
    inside: dict[str, list[Communication]] = defaultdict(list)
    for communication in read_communications(program):
        if communication.operation.inside is not None:
            inside[communication.operation.inside].append(communication)
    functions = {
        operation.name: operation
        for operation in program.calls()
        if operation.prefix == "Autograd" and not is_arranging(operation)
    }
    for name, function in functions.items():
        forward, backward = inside.get(name, []), inside.get(function.backward_name, [])
        if forward or backward:
            flow.communicating.add(name)
            _read_function(flow, program, function, forward, backward)
    for operation in program.calls():
        owner = operation.inside
        if owner in flow.sums and owner not in flow.entries.values():
            flow.entries[operation.name] = owner
    return flow


def _read_function(
    flow: FunctionFlow,
    program: Program,
    function: Operation,
    forward: list[Communication],
    backward: list[Communication],
) -> None:
    left = list(backward)
    for communication in forward:
        found = next((item for item in left if item.kind in _TRANSPOSED.get(communication.kind, ())), None)
        if found is not None:
            left.remove(found)
            flow.spanning.add(communication.operation.name)
    repeated = {communication.kind for communication in forward}
    for communication in left:
        leaf = _find_summed(program, function, communication) if communication.kind in _ADDS_UP else None
        if leaf is not None and communication.op in ("sum", "avg"):
            flow.sums.setdefault(function.name, []).append(GradientSum(leaf, communication))
        elif communication.kind not in repeated:  # what the forward gathered may be gathered once more
            flow.unclear[function.name] = communication.operation.name


def _find_summed(program: Program, function: Operation, communication: Communication) -> Leaf | None:
    """The input whose gradient a collective of the backward made: by what is recorded of it, or by its size."""
    given = {leaf.slot: leaf for leaf in function.inputs}
    departing = list(iter_leaves(program.gradients.get(function.backward_name, {}).get("output"), "output"))
    written = {leaf.storage for leaf in communication.results if leaf.storage is not None}
    made = [leaf for leaf in departing if leaf.source == communication.operation.name or leaf.storage in written]
    size = sum(leaf.element_count for leaf in communication.results)
    alike = [leaf for leaf in departing if leaf.element_count == size]
    for found in (made, alike):
        if len(found) == 1:
            return given.get(found[0].slot.replace("output", "input", 1))
    return None
