"""The calls around the difference as a graph: what goes in, what comes out, and which values stand against each other.

Both runs are drawn in common columns, so that four calls that stand against one are seen as such. It is small: the
calls that the verdict names, those that feed them, and those that take up what they give.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tensorprobe.compare.result import Verdict
from tensorprobe.report.page.call_table import CallTable
from tensorprobe.report.page.recorded import SIDES
from tensorprobe.report.page.verdict import find_side_calls
from tensorprobe.run.call import Call
from tensorprobe.store.slot import TensorSlot

_MAX_NAMED = 12
_MAX_NEIGHBOURS = 6
_MAX_VALUES = 8
"""Of one call, on one side of it."""


@dataclass(eq=False)
class Node:
    """A call, or a value that one call gives and others take."""

    side: str
    kind: str
    label: str
    name: str
    state: str = "unmatched"
    call: int | None = None
    shape: str = ""
    column: int = 0
    slots: list[TensorSlot] = field(default_factory=list)
    """Of a value: the places in which it was recorded."""

    def describe(self, number: int, row: int) -> dict[str, Any]:
        names = ("side", "kind", "label", "name", "call", "column", "state", "shape")
        return {"id": number, "row": row, **{name: getattr(self, name) for name in names}}


def build_region(verdict: Verdict, table: CallTable) -> dict[str, Any] | None:
    """The `graph` of the page; None where the verdict names no call."""
    place = table.find_place(verdict.rank_name)
    if place is None or verdict.call is None:
        return None
    named = {side: find_side_calls(side, verdict, table)[:_MAX_NAMED] for side in SIDES}
    sides = {side: _Side(side, place, table, named[side]) for side in SIDES}
    for side, other in (SIDES, SIDES[::-1]):
        sides[other].add_partners(list(sides[side].calls.values()))
    for one in sides.values():
        one.connect()
    joins = _join(sides, table)
    _arrange([*sides["reference"].edges, *sides["candidate"].edges], joins)
    return _describe(sides, joins)


class _Side:
    """The part of one run that is drawn."""

    def __init__(self, side: str, place: int, table: CallTable, named: tuple[Call, ...]) -> None:
        self.side = side
        self._place, self._table = place, table
        self._all = table.list_calls(place, side)
        self._named = {call.name for call in named}
        self.calls = {call.name: call for call in (*named, *self._find_feeding(named), *self._find_taking())}
        self.nodes: dict[Any, Node] = {}
        self.edges: list[tuple[Node, Node]] = []

    def _find_feeding(self, named: Iterable[Call]) -> list[Call]:
        sources = dict.fromkeys(slot.source for call in named for slot in call.tensors if slot.is_input)
        found = [self._all[source] for source in sources if source in self._all and source not in self._named]
        return found[:_MAX_NEIGHBOURS]

    def _find_taking(self) -> list[Call]:
        """Calls of an API rather than the modules around them."""
        found = [
            call
            for call in self._all.values()
            if call.name not in self._named
            and any(slot.is_input and slot.source in self._named for slot in call.tensors)
        ]
        own = [call for call in found if call.kind == "api" and call.caller is None]
        return sorted(own or found, key=lambda call: call.position)[:_MAX_NEIGHBOURS]

    def add_partners(self, others: Iterable[Call]) -> None:
        """What the calls that are drawn of the other run stand against."""
        other_side = SIDES[self.side == SIDES[0]]
        for call in others:
            pair = self._table.find_pair(self._place, other_side, call)
            own = () if pair is None else pair.reference if self.side == SIDES[0] else pair.candidate
            self.calls.update((one.name, one) for one in own[:_MAX_NAMED] if one.name in self._all)

    def connect(self) -> None:
        for call in sorted(self.calls.values(), key=lambda call: call.position):
            node = Node(self.side, "call", call.op, call.name, self._state_of(call))
            node.call = self._table.find_call(self._place, self.side, call)
            self.nodes[call.name] = node
        for call in self.calls.values():
            self._add_given(call)
        for name in self._named & self.calls.keys():
            for slot in _results(self.calls[name])[:_MAX_VALUES]:
                self._add_value((name, slot.slot), slot, slot)

    def _state_of(self, call: Call) -> str:
        if call.name in self._named:
            return "source"
        pair = self._table.find_pair(self._place, self.side, call)
        return "unmatched" if pair is None else "equal" if pair.role == "clean" else "different"

    def _add_given(self, call: Call) -> None:
        """What goes in: all of a named call, of the others what a drawn call gives."""
        given = [slot for slot in call.tensors if slot.is_input]
        for slot in given[:_MAX_VALUES]:
            maker = self.calls.get(slot.source or "")
            if maker is not None and maker is not call:
                made = _find_made(maker, slot)
                value = self._add_value((maker.name, made.slot), made, slot)
            elif call.name in self._named:
                value = self._add_value(slot.parameter or (call.name, slot.slot, "given"), slot, slot)
            else:
                continue
            self.edges.append((value, self.nodes[call.name]))

    def _add_value(self, key: Any, made: TensorSlot, seen: TensorSlot) -> Node:
        node = self.nodes.get(key)
        if node is None:
            maker = self.nodes.get(key[0]) if isinstance(key, tuple) and len(key) == 2 else None
            name = f"{maker.name}.{made.slot}" if maker else made.parameter or made.slot
            node = Node(self.side, "value", made.parameter or made.slot, name, shape=_describe_shape(made))
            self.nodes[key] = node
            if maker is not None:
                self.edges.append((maker, node))
        node.slots += [one for one in (made, seen) if all(one is not known for known in node.slots)]
        return node


def _results(call: Call) -> list[TensorSlot]:
    return [slot for slot in call.tensors if not slot.is_input]


def _find_made(maker: Call, taken: TensorSlot) -> TensorSlot:
    """Which result of a call it is: the one with its numbers, or at least with its shape."""
    results = _results(maker)
    same = [one for one in results if one.shape == taken.shape and _numbers(one) == _numbers(taken)]
    alike = [one for one in results if one.shape == taken.shape]
    return next(iter(same or alike or results), taken)


def _numbers(slot: TensorSlot) -> tuple[Any, ...]:
    return slot.max, slot.min, slot.mean, slot.norm, slot.checksum


def _describe_shape(slot: TensorSlot) -> str:
    return " × ".join(map(str, slot.shape)) if slot.shape is not None else ""


def _join(sides: dict[str, _Side], table: CallTable) -> dict[tuple[Node, Node], str]:
    """Values that are held against each other; what differs in one place differs."""
    holders = {
        side: {id(slot): node for node in one.nodes.values() for slot in node.slots} for side, one in sides.items()
    }
    values = table.iter_values({node.call for one in sides.values() for node in one.nodes.values()})
    joins: dict[tuple[Node, Node], str] = {}
    for value in sorted(values, key=lambda value: value.is_input):  # what calls give says more than what they are given
        first, second = (
            holders[side].get(id(slot)) for side, slot in zip(SIDES, (value.reference, value.candidate), strict=True)
        )
        is_known = (first, second) in joins
        if first is None or second is None or (not is_known and any({first, second} & {*pair} for pair in joins)):
            continue
        is_equal = value.status in ("equal", "close") and joins.get((first, second)) != "different"
        first.state = second.state = joins[first, second] = "equal" if is_equal else "different"
    return joins


def _arrange(edges: list[tuple[Node, Node]], joins: Iterable[tuple[Node, Node]]) -> None:
    """Columns: to the right of all that it comes from, and of values that are joined the same one. A loop in a hostile
    dump ends after as many rounds as there are nodes."""
    nodes = {id(node): node for edge in edges for node in edge}
    for _ in range(len(nodes)):
        before = [node.column for node in nodes.values()]
        for first, second in edges:
            second.column = max(second.column, first.column + 1)
        for first, second in joins:
            first.column = second.column = max(first.column, second.column)
        if before == [node.column for node in nodes.values()]:
            break
    made = {id(second) for _, second in edges}
    joined = {id(node) for pair in joins for node in pair}
    for first, second in edges:
        if id(first) not in made and id(first) not in joined:
            first.column = max(first.column, second.column - 1)


def _describe(sides: dict[str, _Side], joins: dict[tuple[Node, Node], str]) -> dict[str, Any]:
    nodes = [node for one in sides.values() for node in one.nodes.values()]
    numbers = {id(node): number for number, node in enumerate(nodes)}
    rows: dict[tuple[str, int], int] = {}
    listed = []
    for number, node in enumerate(nodes):
        row = rows.get((node.side, node.column), 0)
        rows[node.side, node.column] = row + 1
        listed.append(node.describe(number, row))
    return {
        "nodes": listed,
        "edges": [
            {"from": numbers[id(first)], "to": numbers[id(second)], "side": first.side}
            for one in sides.values()
            for first, second in dict.fromkeys(one.edges)
        ],
        "joins": [
            {"reference": numbers[id(first)], "candidate": numbers[id(second)], "state": state}
            for (first, second), state in joins.items()
        ],
    }
