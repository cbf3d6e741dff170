"""What a layer calls each time it is called: one call in one framework, several in the other.

A group that is found by its consumer reaches back over all calls without a partner. Where layers of such calls follow
each other, a decoder of linear layers and recurrent cells that goes round and round, that is all of them. A pair of
innermost modules says more: what each calls is a group of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tensorprobe.compare.match.side import Side
from tensorprobe.run.module_tree import ModuleNode

Runs = dict[ModuleNode, list[list[int]]]


def find_layer_calls(
    reference: Side, candidate: Side, modules: Mapping[ModuleNode, ModuleNode]
) -> Iterator[tuple[list[int], list[int]]]:
    """The API calls of pairs of innermost modules, time by time; of those only that are called equally often."""
    runs = _runs(reference, _innermost(modules))
    other_runs = _runs(candidate, _innermost(modules.values()))
    for node, calls in runs.items():
        other_calls = other_runs.get(modules[node], [])
        if len(calls) == len(other_calls):
            yield from zip(calls, other_calls, strict=True)


def find_end(side: Side, members: list[int]) -> int | None:
    """The one call among them whose result others take; None where there are several, or none takes any."""
    inside = set(members)
    last = members[-1]
    ends = {number for number in members if any(user not in inside for user in side.users.get(number, ()))}
    if not ends and not side.users.get(last):
        return last
    return ends.pop() if len(ends) == 1 else None


def _innermost(matched: Collection[ModuleNode]) -> set[ModuleNode]:
    """Those that contain no other."""
    above = {outer for node in matched for outer in node.way_up() if outer is not node}
    return {node for node in matched if node not in above}


def _runs(side: Side, layers: set[ModuleNode]) -> Runs:
    """The calls inside each of these modules, in stretches."""
    found: Runs = {}
    before: ModuleNode | None = None
    for number in side.forward:
        if side.calls[number].kind != "api":
            continue
        node = next((one for one in side.node(number).way_up() if one in layers), None)
        if node is not None and node is before:
            found[node][-1].append(number)
        elif node is not None:
            found.setdefault(node, []).append([number])
        before = node
    return found
