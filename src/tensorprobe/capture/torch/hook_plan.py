"""Which gradients of a call come through which nodes of the graph of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from tensorprobe.capture.call import GradientRecord, Slot
from tensorprobe.capture.torch.node import find_node
from tensorprobe.capture.torch.view_window import ViewWindow, view_changed_in_place

sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr

Edge = tuple[Any, int]
"""An autograd node and the number of its output; for a leaf, None and the address of the tensor."""
Consumers = dict[Edge, list[tuple[Any, int]]]
"""For each edge that leaves a call, the nodes inside the call that use it, with the position they use it at."""


class Span:
    """A call while it runs: where its nodes begin, which edges its inputs hang on, and the calls inside it that have
    ended."""

    __slots__ = ("children", "inputs", "keyword_slots", "slot_of", "slots", "start")

    def __init__(self) -> None:
        self.start = sequence_number()
        self.inputs: dict[Edge, list[Slot]] = {}
        self.slot_of: dict[int, Slot] = {}
        """By the address of the argument: an in-place call returns the very tensor it was given."""
        self.slots: Any = None
        self.keyword_slots: Any = None
        self.children: list[tuple[int, int, Consumers]] = []


Wanted = tuple[int, Slot, ViewWindow | None]
"""The position of a gradient, the slot it is for, and the part of it that is meant."""


class HookPlan:
    """Which gradients of one call come through which nodes, before they run and after."""

    def __init__(self, record: GradientRecord) -> None:
        self._record = record
        self.arriving: dict[Any, list[Wanted]] = {}
        self.departing: dict[Any, list[Wanted]] = {}

    def add_output(self, span: Span, slot: Slot, tensor: torch.Tensor, leaving: Consumers) -> None:
        """The gradient of something that the call returned."""
        node, number = find_node(tensor), tensor.output_nr
        window = view_changed_in_place(tensor, span.start)
        if window is not None:
            self._add_changed_view(span, slot, tensor, window)
        elif node is not None:
            self._arrive(node, (number, slot, None))
            if not leaving.get((node, number)):  # a call that returns its input as it is
                for passed in span.inputs.get((node, number), ()):
                    self._arrive(node, (number, passed, None))

    def add_inputs(self, span: Span, leaving: Consumers) -> None:
        """The call's share of the gradients of what it was given."""
        for edge, slots in span.inputs.items():
            users = leaving.get(edge, ())
            # x * x: one node, and its positions are in the order of the arguments. Otherwise the first has the sum.
            is_told_apart = len(users) == len(slots) and len({node for node, _ in users}) == 1
            for number, (node, position) in enumerate(users):
                self._depart(node, (position, slots[number] if is_told_apart else slots[0], None))

    def _add_changed_view(self, span: Span, slot: Slot, view: torch.Tensor, window: ViewWindow) -> None:
        """A view that was changed in place: gradients pass through the node of its base, whichever is used later."""
        node = view._base.grad_fn
        self._arrive(node, (0, slot, window))
        given = span.slot_of.get(id(view))
        if given is not None and node.next_functions[0][0] is not None:
            self._depart(node, (0, given, window))

    def _arrive(self, node: Any, wanted: Wanted) -> None:
        self._record.expect(wanted[1])
        self.arriving.setdefault(node, []).append(wanted)

    def _depart(self, node: Any, wanted: Wanted) -> None:
        self._record.expect(wanted[1])
        self.departing.setdefault(node, []).append(wanted)


FindLeaving = Callable[[Any, int, Span], Edge | None]


def plan_one_node(
    record: GradientRecord, span: Span, tensor: torch.Tensor, find_leaving: FindLeaving
) -> tuple[Any, list[Wanted], list[Wanted]] | None:
    """For the usual call, which returned one tensor and has one node: that node, and what of the gradients that come to
    it and that it gives on is wanted. None for any other call."""
    node = find_node(tensor)
    if node is None or node._sequence_nr() < span.start or isinstance(node, BackwardCFunction):
        return None
    if (node, tensor.output_nr) in span.inputs or view_changed_in_place(tensor, span.start) is not None:
        return None
    positions: dict[Edge, list[int]] = {}
    for position, (parent, number) in enumerate(node.next_functions):
        if parent is not None:
            edge = find_leaving(parent, number, span)
            if edge is None:
                return None
            positions.setdefault(edge, []).append(position)
    slot = Slot("input.0")
    record.inputs = [slot]
    record.expect(slot)
    departing: list[Wanted] = []
    for edge, slots in span.inputs.items():
        users = positions.get(edge, ())
        is_told_apart = len(users) == len(slots)  # as in `HookPlan.add_inputs`
        for number, position in enumerate(users):
            chosen = slots[number] if is_told_apart else slots[0]
            record.expect(chosen)
            departing.append((position, chosen, None))
    return node, [(tensor.output_nr, slot, None)], departing
