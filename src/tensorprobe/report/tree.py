"""Rows of a tree: modules, and in them the calls they made.

The nesting is that of construct.json; at L1, where that is empty, the calls are grouped by the module path in their
records, run by run, so that the order of execution stays visible. Rows stand in the order in which they are printed;
each knows its depth. Nothing here is recursive: a hostile construct.json can be nested deeper than Python's stack, or
in circles.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tensorprobe.model.name import BACKWARD, Direction
from tensorprobe.run.call import Call, name_call

Kind = Literal["call", "module", "gradients", "path", "absent", "saved", "folded"]
"""`path` is a module that is known only by its path; `absent` a module call that has no record, because it was killed
or filtered; `folded` stands for several calls, of which it holds the first."""
_KINDS: dict[str, Kind] = {"module": "module", "parameters_grad": "gradients"}

_MAX_PATH_PARTS = 500
"""A longer path is one level: each level of a path has a name that repeats all before it."""
FOLD_FROM = 4
"""So many calls in a row that the framework made itself are shown as one line."""


@dataclass(frozen=True, slots=True)
class Row:
    """One call in its place."""

    record: str
    """The key in dump.json; a module path where the kind is `path`."""
    label: str
    """What is not yet said by the rows above it: `fc: Linear`, `Functional.linear.0`."""
    kind: Kind
    direction: Direction | None
    depth: int
    parent: str | None
    call: Call | None
    is_last: bool = False
    """The last one in its parent."""
    is_context: bool = False
    """Here only because something in it was asked for."""
    hidden_count: int = 0
    """Rows inside it that are not shown."""


@dataclass(slots=True)
class _Node:
    record: str
    kind: Kind
    call: Call | None
    direction: Direction | None
    named: Call | None = None
    """What its name says, also where it has no record; None for a path."""
    children: list[_Node] = field(default_factory=list)


def build_rows(calls: Sequence[Call], parents: Mapping[str, str | None]) -> list[Row]:
    """All calls of one step of one process, nested."""
    return _flatten(_nest_by_parents(calls, parents) if parents else _nest_by_path(calls))


def build_saved_rows(calls: Iterable[Call]) -> list[Row]:
    """Saved values are a flat list."""
    return mark_last([Row(call.name, call.name, "saved", None, 0, None, call) for call in calls])


def filter_rows(rows: list[Row], text: str) -> list[Row]:
    """The rows that contain `text` in their name, module path, caller or error, and what is above them."""
    wanted, need = text.lower(), 0
    kept: list[Row] = []
    for row in reversed(rows):
        if any(wanted in word.lower() for word in _words(row)):
            kept.append(row)
        elif row.depth == need - 1:
            kept.append(replace(row, is_context=True))
        else:
            continue
        need = row.depth
    return mark_last(kept[::-1])


def limit_depth(rows: list[Row], levels: int) -> list[Row]:
    """Only the outermost `levels` levels; the innermost of them say how much they hide."""
    kept: list[Row] = []
    for row in rows:
        if row.depth < levels:
            kept.append(row)
        elif kept:
            kept[-1] = replace(kept[-1], hidden_count=kept[-1].hidden_count + 1)
    return mark_last(kept)


def fold_framework_calls(rows: list[Row], notable: Collection[str]) -> list[Row]:
    """An optimizer makes hundreds of calls: each run of them becomes one row, except for the records in `notable`."""
    folded: list[Row] = []
    run: list[Row] = []
    for index, row in enumerate(rows):
        has_children = index + 1 < len(rows) and rows[index + 1].depth > row.depth
        caller = row.call.caller if row.call and not has_children and row.record not in notable else None
        if run and (caller is None or not _continues(run[-1], row)):
            folded += _fold(run)
            run = []
        if caller is None:
            folded.append(row)
        else:
            run.append(row)
    return mark_last(folded + _fold(run))


def mark_last(rows: list[Row]) -> list[Row]:
    """Set `is_last`, which lines of a tree need."""
    marked: list[Row] = []
    depths_below: list[int] = []  # ascending
    for row in reversed(rows):
        while depths_below and depths_below[-1] > row.depth:
            depths_below.pop()
        is_last = not depths_below or depths_below[-1] < row.depth
        if is_last:
            depths_below.append(row.depth)
        marked.append(replace(row, is_last=is_last))
    return marked[::-1]


def _fold(run: list[Row]) -> list[Row]:
    if len(run) < FOLD_FROM:
        return run
    first = run[0]
    return [replace(first, label=f"{len(run)} calls by the framework itself", kind="folded", hidden_count=len(run))]


def _continues(before: Row, row: Row) -> bool:
    callers = {one.call.caller for one in (before, row) if one.call}
    return before.depth == row.depth and before.direction == row.direction and len(callers) == 1


def _words(row: Row) -> list[str]:
    call = row.call
    words = [row.record, call.told_path, call.caller, call.failed] if call else [row.record]
    return [word for word in words if word]


def _nest_by_parents(calls: Sequence[Call], parents: Mapping[str, str | None]) -> list[_Node]:
    by_name = {call.name: call for call in calls}
    nodes: dict[str, _Node] = {}
    roots: list[_Node] = []
    gradients: list[Call] = []
    for call in calls:
        if call.kind == "parameters_grad" and not parents.get(call.name):
            gradients.append(call)
        else:
            _add_with_parents(call.name, by_name, parents, nodes, roots)
    backwards = {
        node.named.stem: node
        for node in nodes.values()
        if node.named and node.named.kind == "module" and node.direction == BACKWARD
    }
    for call in gradients:
        around = backwards.get(call.stem)
        (around.children if around else roots).append(_node(call.name, call))
    return roots


def _add_with_parents(
    record: str,
    calls: Mapping[str, Call],
    parents: Mapping[str, str | None],
    nodes: dict[str, _Node],
    roots: list[_Node],
) -> None:
    """Put a record in its place; modules around it that are not there yet come with it, before it."""
    chain: dict[str, None] = {}
    current: str | None = record
    while current is not None and current not in nodes and current not in chain:
        chain[current] = None
        current = parents.get(current)
    around = nodes.get(current) if current is not None else None
    for name in reversed(chain):
        nodes[name] = _node(name, calls.get(name))
        (around.children if around else roots).append(nodes[name])
        around = nodes[name]


def _nest_by_path(calls: Iterable[Call]) -> list[_Node]:
    top = _Node("", "path", None, None)
    opened = [top]
    direction: Direction | None = None
    for call in calls:
        if call.phase != direction:
            direction = call.phase
            del opened[1:]
        path = call.told_path or ""
        while len(opened) > 1 and not f"{path}.".startswith(f"{opened[-1].record}."):
            opened.pop()
        for name in _inner_paths(opened[-1].record, path):
            node = _Node(name, "path", None, direction)
            opened[-1].children.append(node)
            opened.append(node)
        opened[-1].children.append(_node(call.name, call))
    return top.children


def _inner_paths(outer: str, path: str) -> list[str]:
    """From `layers` to `layers.0.fc`: `layers.0`, `layers.0.fc`."""
    parts = path.split(".") if path else []
    if len(parts) > _MAX_PATH_PARTS:
        return [path] if path != outer else []
    known = len(outer.split(".")) if outer else 0
    return [".".join(parts[: count + 1]) for count in range(known, len(parts))]


def _node(record: str, call: Call | None) -> _Node:
    named = call or name_call(record)
    kind: Kind = "absent" if call is None else _KINDS.get(call.kind, "call")
    return _Node(record, kind, call, named.phase, named)


def _flatten(roots: list[_Node]) -> list[Row]:
    rows: list[Row] = []
    waiting: list[tuple[_Node, int, str | None, str]] = [(node, 0, None, "") for node in reversed(roots)]
    while waiting:
        node, depth, parent, outer = waiting.pop()
        while node.kind == "path" and len(node.children) == 1 and node.children[0].kind == "path":
            node = node.children[0]
        rows.append(Row(node.record, _label(node, outer), node.kind, node.direction, depth, parent, node.call))
        inner = _path_of(node) or outer
        waiting += [(child, depth + 1, node.record, inner) for child in reversed(node.children)]
    return mark_last(rows)


def _path_of(node: _Node) -> str:
    if node.named is None:
        return node.record
    return node.named.path if node.named.kind == "module" else ""


def _label(node: _Node, outer: str) -> str:
    named = node.named
    if named is None:
        return _relative(node.record, outer)
    if named.kind == "module":
        count = f" #{named.index}" if named.index else ""
        return f"{_relative(named.path, outer)}: {named.op}{count}" if named.path else f"{named.op}{count}"
    if named.kind == "parameters_grad":
        return "parameter gradients" if outer == named.path else node.record
    return named.stem


def _relative(path: str, outer: str) -> str:
    return path.removeprefix(f"{outer}.") if outer else path
