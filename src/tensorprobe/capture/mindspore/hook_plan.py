"""Where the gradients of one call come through: the nodes that are to be hooked, and what each brings."""

from __future__ import annotations

from typing import Any

from tensorprobe.capture.call import GradientRecord, Slot
from tensorprobe.capture.mindspore.node import identity_of

Edge = tuple[Any, int]
"""A node, by what identifies it, and the number of its output."""
Consumers = dict[Edge, list[tuple[Any, int]]]
"""For each edge that leaves a call, the nodes inside the call that use it, with the position they use it at."""


class Span:
    """A call while it runs: which nodes were there before, which edges its inputs hang on, and the calls inside it that
    have ended."""

    __slots__ = ("arguments", "children", "inputs", "keyword_slots", "slots", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        """The last node that was there before."""
        self.arguments: tuple[Any, Any] | None = None
        """Of a call that begins the graph itself, what it was given: the inputs hang in it only when it has begun."""
        self.inputs: dict[Edge, list[Slot]] = {}
        self.slots: Any = None
        self.keyword_slots: Any = None
        self.children: list[tuple[int, int, Consumers]] = []


Wanted = tuple[int, Slot]
"""The position of a gradient, and the slot it is for."""


class HookPlan:
    """Which gradients of one call come through which nodes, before they run and after."""

    def __init__(self, record: GradientRecord) -> None:
        self._record = record
        self.arriving: dict[Any, tuple[Any, list[Wanted]]] = {}
        self.departing: dict[Any, tuple[Any, list[Wanted]]] = {}

    def add_output(self, span: Span, slot: Slot, node: Any, number: int, leaving: Consumers) -> None:
        """The gradient of something that the call returned."""
        self._arrive(node, (number, slot))
        edge = identity_of(node), number
        if not leaving.get(edge):  # a call that returns its input as it is
            for passed in span.inputs.get(edge, ()):
                self._arrive(node, (number, passed))

    def add_inputs(self, span: Span, leaving: Consumers) -> None:
        """The call's share of the gradients of what it was given."""
        for edge, slots in span.inputs.items():
            users = leaving.get(edge, ())
            # x * x: one node, and its positions are in the order of the arguments. Otherwise the first has the sum.
            is_told_apart = len(users) == len(slots) and len({identity_of(node) for node, _ in users}) == 1
            for number, (node, position) in enumerate(users):
                self._depart(node, (position, slots[number] if is_told_apart else slots[0]))

    def _arrive(self, node: Any, wanted: Wanted) -> None:
        if node.is_leaf():
            return  # the node of an input or a parameter does not run
        self._record.expect(wanted[1])
        self.arriving.setdefault(identity_of(node), (node, []))[1].append(wanted)

    def _depart(self, node: Any, wanted: Wanted) -> None:
        self._record.expect(wanted[1])
        self.departing.setdefault(identity_of(node), (node, []))[1].append(wanted)
