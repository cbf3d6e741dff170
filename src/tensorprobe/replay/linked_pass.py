"""Where gradients were asked for, and what became of them, in a record that does not say it: MindSpore's."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import Protocol

import torch

from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors
from tensorprobe.run.backward_pass import PASS, BackwardPass, LeafGradient
from tensorprobe.run.leaf import STATE_ROLES, UNASKED, Leaf, change_leaves

Key = tuple[str, tuple[int, ...], bytes]
"""Equal for tensors of the same bits."""
_PLACES = {"input_args": "input", "input_kwargs": "kwargs"} | {role: role for role in STATE_ROLES}
_SAME_SUM = 4.0
"""By so many roundings may the sum of the shares of a gradient differ from it: they were added up in some order."""


class Linked(Protocol):
    """What is known of the tensors of a program."""

    recorded: RecordedTensors
    leaves: dict[Key, int]

    def key(self, leaf: Leaf) -> Key | None: ...
    def says_nothing(self, leaf: Leaf, key: Key) -> bool: ...


def find_passes(program: Program, linked: Linked) -> list[BackwardPass]:
    """A gradient that comes back to a result, and that none of its users has given, is where a pass began. (What a call
    that nobody saw gives back is such a beginning, too.) The program is told which calls gave some back unrecorded."""
    given_back, program.unrecorded = _find_given_back(program)
    reached = given_back | _find_unrecorded(program)
    for operation in program.calls():
        _tell_what_is_followed(operation, given_back, reached)
    found: list[BackwardPass] = []
    begin = -1
    for first, last in _runs(program):
        roots: dict[int, tuple[Leaf, Leaf]] = {}
        calls = [call for call in program.calls() if first <= program.gradient_position(call.backward_name) <= last]
        for operation in calls:
            arriving = program.gradients_of(operation)[0]
            for leaf in operation.outputs:
                if leaf.tensor is not None and leaf.slot in arriving and leaf.tensor not in given_back:
                    roots[leaf.tensor] = leaf, arriving[leaf.slot]
        if roots:
            tensors, gradients = zip(*roots.values(), strict=True)
            name = f"{PASS}{len(found)}"
            leaves = tuple(_find_leaf_gradients(program, linked, calls, last))
            ends = tuple(_find_ends(program, begin, last))
            found.append(BackwardPass(name, first, tensors, gradients, leaves=leaves, begins_anew=True, reached=ends))
            begin = last
    return list(_narrow(found))


def _narrow(passes: Sequence[BackwardPass]) -> Iterator[BackwardPass]:
    """Some kernels give gradients back that nobody asked for: not among those of one pass is what later calls took from
    another one alone."""
    taken = [{one.leaf.tensor for one in asked.leaves} for asked in passes]
    for asked, own in zip(passes, taken, strict=True):
        others = set[int | None]().union(*taken) - own if own else set[int | None]()
        kept = tuple(leaf for leaf in asked.reached if leaf.tensor not in others)
        yield replace(asked, reached=kept if len(passes) > 1 else ())


def _find_ends(program: Program, begin: float, last: float) -> Iterator[Leaf]:
    """The leaves that a pass went to. What an earlier one has gone through is data for it; and of a network that it
    only goes through nobody asked for the gradients of parameters: then most calls give none back to these."""
    calls = [call for call in program.calls() if begin < call.position <= last]
    known = {leaf.tensor for call in calls for leaf in call.operands if leaf.parameter is not None}
    made = {leaf.tensor for call in calls for leaf in call.outputs} - known
    seen = set[int | None]()
    for call in calls:
        departing = program.gradients_of(call)[1]
        is_recorded = any(program.gradients_of(call))
        for leaf in call.operands:
            is_leaf = leaf.tensor is not None and leaf.tensor not in made and leaf.requires_grad
            if is_leaf and leaf.tensor not in seen and (leaf.slot in departing or not is_recorded):
                seen.add(leaf.tensor)
                yield leaf


def _find_unrecorded(program: Program) -> set[int]:
    """What the calls inside of a layer take: its record has the gradients of its own arguments alone."""
    inside = (call for layer in program.walk() if layer.is_layer for call in layer.children)
    return {leaf.tensor for call in inside for leaf in call.operands if leaf.tensor is not None}


def _tell_what_is_followed(operation: Operation, given_back: Set[int], reached: Set[int]) -> None:
    """Nothing comes back to a call outside of what is differentiated. And of a parameter that could have a gradient
    none may have been asked for: none has `reached` it."""
    floating = [leaf for leaf in operation.outputs if leaf.is_floating]
    is_followed = operation.has_backward or not floating or any(_is_reached(leaf, given_back) for leaf in floating)
    left_out = {leaf.tensor for leaf in operation.operands if leaf.parameter is not None and leaf.tensor not in reached}
    if is_followed and not (given_back and left_out):
        return
    fields = {**operation.fields} if is_followed else {**operation.fields, "grad_enabled": False}
    for name, slot in _PLACES.items():
        if name in fields:
            fields[name] = change_leaves(
                fields[name],
                slot,
                lambda leaf: {"requires_grad": False, UNASKED: True} if leaf.tensor in left_out else {},
            )
    operation.describe(fields)


def _is_reached(result: Leaf, given_back: Set[int]) -> bool:
    """Does a gradient come to a result? Where a parameter is assigned, it ends."""
    return result.parameter is None and (result.requires_grad or result.tensor in given_back)


def _find_leaf_gradients(
    program: Program, linked: Linked, calls: Sequence[Operation], last: int
) -> Iterator[LeafGradient]:
    """The gradients that later calls are given, as clipping and an optimizer that is written out are. They are known by
    their bits; those of a leaf that several calls have taken are a sum."""
    made = {leaf.tensor for call in program.calls() for leaf in call.outputs}
    passed_on = {one.tensor: leaf for call in program.calls() for one, leaf in _find_passed_on(call, linked)}
    shares: dict[int, tuple[Leaf, list[Leaf]]] = {}
    for call in calls:
        departing = program.gradients_of(call)[1]
        for operand in call.operands:
            leaf = passed_on.get(operand.tensor, operand)
            is_leaf = leaf.tensor not in made or leaf.parameter is not None  # which may have been assigned
            if leaf.tensor is not None and is_leaf and operand.slot in departing:
                shares.setdefault(leaf.tensor, (leaf, []))[1].append(departing[operand.slot])
    unknown = set(linked.leaves.values())
    later = [call for call in program.calls() if call.position > last]
    given: dict[int | None, Leaf] = {
        leaf.tensor: leaf for call in later for leaf in call.inputs if leaf.tensor in unknown
    }
    for leaf, parts in shares.values():
        after = _find_sum(parts, linked, given)
        if after is not None:
            yield LeafGradient(leaf, None, after)


def _find_passed_on(call: Operation, linked: Linked) -> Iterator[tuple[Leaf, Leaf]]:
    """What a call without a backward gives as it was given it, as a parameter that is cast to the type that it has."""
    if not call.has_backward and len(call.outputs) == len(call.inputs) == 1:
        given, result = call.inputs[0], call.outputs[0]
        if given.parameter is not None and result.requires_grad and linked.key(given) == linked.key(result):
            yield result, given


def _find_sum(parts: Sequence[Leaf], linked: Linked, given: dict[int | None, Leaf]) -> Leaf | None:
    """Which of these tensors is the sum of the others?"""
    if len(parts) == 1:
        key = linked.key(parts[0])
        is_telling = key is not None and not linked.says_nothing(parts[0], key)
        return given.get(linked.leaves.get(key)) if key is not None and is_telling else None
    alike = [leaf for leaf in given.values() if (leaf.dtype, leaf.shape) == (parts[0].dtype, parts[0].shape)]
    try:
        contents = [linked.recorded.load(part).double() for part in parts] if alike else []
        total, size = sum(contents), max((float(one.abs().max()) for one in contents if one.numel()), default=0.0)
        unit = torch.finfo(linked.recorded.load(parts[0]).dtype).eps if alike else 0.0
        same = (
            leaf for leaf in alike if _is_near(linked.recorded.load(leaf), total, _SAME_SUM * len(parts) * unit * size)
        )
        return next(same, None) if size else None
    except MissingContentError:
        return None


def _is_near(first: torch.Tensor, second: torch.Tensor | int, distance: float) -> bool:
    return bool(((first.double() - second).abs() <= distance).all())


def _find_given_back(program: Program) -> tuple[set[int], set[str]]:
    """The tensors whose gradient some call gave back, and the calls that did so without a record of it, as MindSpore's
    squeeze and stack: their results have got a gradient. Of what such a call takes, another call's result is given
    one. A leaf is only if there is nothing else: for that of others, nobody may have asked."""
    calls = list(program.calls())
    made = {leaf.tensor for operation in calls for leaf in operation.outputs}
    found = {number for operation in calls for number in _numbers_given_back(program, operation)}
    unrecorded: set[str] = set()
    for operation in reversed(calls):
        is_reached = any(leaf.tensor in found and leaf.parameter is None for leaf in operation.outputs)
        given = {leaf.tensor for leaf in operation.inputs if leaf.is_floating and leaf.tensor is not None}
        if is_reached and not any(program.gradients_of(operation)):
            unrecorded.add(operation.name)
            found.update(given if len(given) == 1 else given & made)
    return found, unrecorded


def _numbers_given_back(program: Program, operation: Operation) -> Iterator[int]:
    """The tensors to which a call gave a gradient back."""
    departing = program.gradients_of(operation)[1]
    for leaf in operation.inputs:
        if leaf.slot in departing and leaf.tensor is not None:
            yield leaf.tensor


def _runs(program: Program) -> list[tuple[int, int]]:
    """Where backward records follow each other without a forward call between them."""
    forward = sorted(operation.position for operation in program.calls())
    found: dict[int, tuple[int, int]] = {}
    for position in sorted(map(program.gradient_position, program.gradients)):
        place = bisect_left(forward, position)
        found[place] = found.get(place, (position, position))[0], position
    return list(found.values())
