"""Two values that differ while all that was computed from them agrees again are no pair: they are dissolved.

A difference is followed from call to call, in both runs and into their backward passes, for as long as results differ
or are not known. Where it reaches what a step is for (what a module returns that is inside no other, a gradient of a
parameter, what was saved, what no recorded call takes) it has an effect, and is judged. Where it ends before, nothing
depends on it: the two values only had the same name, or a later call takes back what was done to one of them. What the
step before has written for this one to find, such as running statistics, is something that a step is for by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from tensorprobe.compare.judge.evidence import Finding
from tensorprobe.compare.judge.kept_state import keeps_otherwise
from tensorprobe.compare.judge.status import DISSOLVED, leave_out
from tensorprobe.compare.match.pairing import PairedCall, RunSide
from tensorprobe.compare.result import ValuePair
from tensorprobe.model.name import BACKWARD, FORWARD, module_stem
from tensorprobe.model.undefined import UNDEFINED_MEMORY
from tensorprobe.run.call import Call
from tensorprobe.store.slot import TensorSlot

Node = PairedCall | Call
"""A pair of calls; or a call that only one run has, of which nothing is known."""
_ENDS = ("parameters_grad", "saved")


def dissolve_pairs(finding: Finding) -> bool:
    """Leave out what differs without an effect; True if there was any."""
    own = [pair for pair in finding.pairs if _differs(pair) and not pair.is_framework_made]
    differing = [pair for pair in own if not keeps_otherwise(pair, finding.past.kept)]
    if not differing:
        return False
    effects = Effects(finding)
    dissolved = [pair for pair in differing if not effects.reach_an_end(pair)]
    for pair in dissolved:
        dissolve(pair)
    return bool(dissolved)


def _differs(pair: PairedCall) -> bool:
    return any(map(_may_be_no_pair, pair.values))


def _may_be_no_pair(value: ValuePair) -> bool:
    """Not where a file is lost and the records contradict: then one of the dumps is damaged."""
    return value.is_bad and value.measurement is not None and value.measurement.fallback is None


def dissolve(pair: PairedCall) -> None:
    """Leave out what differs in it."""
    for value in pair.values:
        if _may_be_no_pair(value):
            leave_out(value, DISSOLVED)
    if not any(value.is_bad for value in pair.values):
        pair.role, pair.because, pair.suspects = "clean", "", ()


def _agrees(node: Node) -> bool:
    """Is all that came out of it known to be the same? Of what left no record nothing is known."""
    if isinstance(node, Call) or any(value.is_bad for value in node.outputs):
        return False
    tensors = [value for value in node.outputs if value.is_tensor and value.reason != UNDEFINED_MEMORY]
    known = {id(value.reference) for value in tensors if value.status in ("equal", "close")}
    results = [slot for slot in node.reference.tensors if not slot.is_input and not slot.is_undefined]
    if node.match.is_group:  # what one of its calls hands to another has no counterpart
        return bool(known) and len(known) == len(tensors)
    return bool(results) and all(id(slot) in known for slot in results)


class Effects:
    """Which calls take what other calls computed, in either run."""

    def __init__(self, finding: Finding) -> None:
        self._sides = (finding.reference, finding.candidate)
        self._has_apis = all(any(call.kind == "api" for call in side.run.calls) for side in self._sides)
        self._next: dict[Node, set[Node]] = {}
        self._ends: set[Node] = set()
        self._taken: set[Node] = set()
        self._nodes: set[Node] = {pair for pair in finding.pairs if not pair.is_framework_made}
        for side in self._sides:
            for call in side.run.calls:
                if call.caller is None:
                    self._add(side, call)

    def reach_an_end(self, pair: PairedCall) -> bool:
        """Does anything that a step is for depend on what differs here?"""
        return pair in self._effective or any(one in self._effective for one in self._next.get(pair, ()))

    @cached_property
    def _effective(self) -> set[Node]:
        """What differs and reaches an end by way of what differs: followed once, from the ends back, because a fault at
        the beginning of a long step makes all of it differ."""
        before: dict[Node, list[Node]] = {}
        for node, following in self._next.items():
            for one in following:
                before.setdefault(one, []).append(node)
        differing = {node for node in self._nodes if not _agrees(node)}
        waiting = [
            node for node in differing if node in self._ends or not self._next.get(node) or self._is_result(node)
        ]
        found = set(waiting)
        while waiting:
            fresh = [node for node in before.get(waiting.pop(), ()) if node in differing and node not in found]
            found.update(fresh)
            waiting += fresh
        return found

    def _is_result(self, node: Node) -> bool:
        """Does no recorded call of a forward take what it gives? A loss leads to its own backward only."""
        call = node if isinstance(node, Call) else node.reference
        return call.direction == FORWARD and node not in self._taken

    def _add(self, side: RunSide, call: Call) -> None:
        node = _node(side, call)
        self._nodes.add(node)
        if call.kind in _ENDS or (call.kind == "module" and side.nesting.parent(call) is None):
            self._ends.add(node)
        behind = [_node(side, found) for found in _find_behind(side, call)]
        for maker in _makers(side, call):
            self._taken.add(_node(side, maker))
            for taker in (node, *behind):  # a gradient depends on what went into the forward
                self._lead(_node(side, maker), taker)
        for taker in behind:
            self._lead(node, taker)
        if call.direction == BACKWARD:
            self._add_gradients(side, call, node)
        outer = side.nesting.parent(call)
        if not self._has_apis and outer is not None:  # the own code of the module around it may take it
            self._lead(node, _node(side, outer))

    def _add_gradients(self, side: RunSide, call: Call, node: Node) -> None:
        """What comes back from a call goes on to the calls that made what went in, or is the gradient of a leaf."""
        forward = side.flow.forward_of(call)
        given = [slot for slot in forward.tensors if slot.is_input] if forward is not None else []
        for slot in given:
            maker = side.flow.producer(slot)
            behind = side.flow.backward_of(maker) if maker is not None else None
            if behind is not None:
                self._lead(node, _node(side, behind))
            elif slot.requires_grad is not False:
                self._ends.add(node)

    def _lead(self, first: Node, second: Node) -> None:
        if first is not second:
            self._next.setdefault(first, set()).add(second)


def _node(side: RunSide, call: Call) -> Node:
    return side.pair(call) or call


def _find_behind(side: RunSide, call: Call) -> list[Call]:
    """The backward of a call, and the gradients of the parameters of a module."""
    found = [side.flow.backward_of(call)] if call.direction == FORWARD else []
    if call.kind == "module":
        found.append(side.run.by_name.get(f"{module_stem(call.prefix, call.path, call.op)}.parameters_grad"))
    return [one for one in found if one is not None]


def _makers(side: RunSide, call: Call) -> Iterator[Call]:
    """The calls whose results it takes, or, of a module, returns."""
    for slot in call.tensors:
        maker = side.flow.producer(slot) if _is_taken(call, slot) else None
        if maker is not None and maker is not call:
            yield maker


def _is_taken(call: Call, slot: TensorSlot) -> bool:
    return slot.is_input or call.kind in ("module", *_ENDS)
