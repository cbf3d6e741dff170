"""Calls with distributed tensors, made once for all ranks of their mesh, with the whole tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tensorprobe.model.record import Sharding
from tensorprobe.replay.board import Meeting, Steps, attend
from tensorprobe.replay.invocation import NotReplayedError, Tensors
from tensorprobe.replay.program import Operation
from tensorprobe.replay.spread import SpreadTensors, combine, cut, is_spread, part_leaf
from tensorprobe.run.leaf import Leaf

if TYPE_CHECKING:
    from tensorprobe.replay.engine import Replay

_FROM_PART, _TO_PART, _MOVED = "_FromTorchTensor", "_ToTorchTensor", "Redistribute"
"""Functions of torch that make a distributed tensor of its parts, take a part of it, and let it lie otherwise."""
FUNCTIONS = tuple(f"Autograd.{name}." for name in (_FROM_PART, _TO_PART, _MOVED))


@dataclass(frozen=True)
class SpreadContribution:
    """What one rank brings to a call."""

    calls: SpreadCalls
    operation: Operation
    values: dict[str, torch.Tensor]
    """Whole tensors where they are known, parts where not, and what is not distributed, by its place."""
    parts: frozenset[str]
    """The places of those that are only parts."""


class SpreadCalls:
    """The distributed tensors of one rank, and what it calls with them."""

    def __init__(self, replay: Replay, rank: int) -> None:
        self._replay = replay
        self._rank = rank
        self.tensors = SpreadTensors()
        self._counts: dict[tuple[int, ...], int] = {}

    def execute(self, operation: Operation) -> Steps:
        """What a call gives, in parts of this rank."""
        if operation.prefix == "Autograd":
            if operation.op == _TO_PART:
                return self._take_part(operation)
            if operation.op == _MOVED:
                return self._move(operation)
            if operation.op != _FROM_PART:
                raise NotReplayedError("it computes with parts of distributed tensors")
        sharding = find_sharding([*operation.inputs, *operation.outputs])
        number = self._counts[sharding.mesh_ranks] = self._counts.get(sharding.mesh_ranks, -1) + 1
        meeting = Meeting(("mesh", sharding.mesh_ranks, number), sharding.mesh_ranks, call_together)
        contribution = self._make_contribution(operation)
        found = yield from attend(self._replay.board, meeting, self._rank, contribution, operation.name)
        self._show(operation, contribution.values, found)
        return self._add_results(operation, found)

    def _show(self, operation: Operation, given: Tensors, results: Tensors) -> None:
        """Tell whoever looks on of the whole tensors, as far as they are known by now."""
        wholes = {leaf.slot: self.tensors.find(leaf) for leaf in operation.inputs if leaf.sharding is not None}
        known = {slot: whole for slot, whole in wholes.items() if whole is not None}
        self._replay.onlooker.see_spread(operation, {**given, **known}, results)

    def cut(self, leaf: Leaf, whole: torch.Tensor) -> torch.Tensor | None:
        """This rank's part of what the record says of a distributed tensor; None where it has only a summand."""
        return cut(whole, leaf.sharding, self._rank) if leaf.sharding is not None else whole

    def find(self, leaf: Leaf) -> torch.Tensor | None:
        return self.tensors.find(leaf)

    def pin(self, leaf: Leaf, part: torch.Tensor) -> None:
        """Take what was recorded of this rank's part; the whole is not known any more."""
        if leaf.tensor is not None and leaf.storage is not None:
            self.tensors.forget([leaf.tensor], [leaf.storage])
        self._replay.workspace.write(part_leaf(leaf), part)

    def find_part(self, leaf: Leaf) -> torch.Tensor | None:
        """A plain tensor that is the part of a distributed one, taken where no call is seen to do it."""
        found = self.tensors.find_around(leaf)
        return self.cut(*found) if found is not None else None

    def _make_contribution(self, operation: Operation) -> SpreadContribution:
        values: dict[str, torch.Tensor] = {}
        parts: set[str] = set()
        for leaf in operation.inputs:
            whole = self.tensors.find(leaf) if leaf.sharding is not None else None
            if leaf.sharding is not None and whole is None:
                values[leaf.slot] = self._replay.values.read_part(leaf)
                parts.add(leaf.slot)
            else:
                values[leaf.slot] = whole if whole is not None else self._replay.values.take(leaf, operation)
        return SpreadContribution(self, operation, values, frozenset(parts))

    def _take_part(self, operation: Operation) -> Tensors:
        given, result = operation.inputs[0], operation.outputs[0]
        whole = self.tensors.find(given)
        if whole is None or given.sharding is None:
            raise NotReplayedError("the distributed tensor was made by something that was not replayed")
        is_default = len(operation.arguments) < 2 or operation.arguments[1] is None
        part = cut(whole, given.sharding, self._rank, is_shared=is_default)
        if part is None:
            raise NotReplayedError("the part of one rank is a summand, which the whole tensor does not tell")
        # it may lie in the memory of the tensor that it was distributed from, whose maker is recorded as its own
        self._replay.workspace.add(result, part, result.source or operation.name)
        self._show(operation, {}, {result.slot: part})
        return {result.slot: part}

    def _move(self, operation: Operation) -> Tensors:
        given, result = operation.inputs[0], operation.outputs[0]
        whole = self.tensors.find(given)
        if whole is None:
            raise NotReplayedError("the distributed tensor was made by something that was not replayed")
        moved = {result.slot: whole.view_as(whole)}
        self._show(operation, {}, moved)
        return self._add_results(operation, moved)

    def _add_results(self, operation: Operation, found: Tensors) -> Tensors:
        results = {}
        for leaf in operation.outputs:
            whole = found[leaf.slot]
            if leaf.sharding is None:
                self._replay.workspace.add(leaf, whole, operation.name)
                results[leaf.slot] = whole
                continue
            self.tensors.add(leaf, whole)
            part = self.cut(leaf, whole)
            if part is not None:
                results[leaf.slot] = part
                if operation.writes_in_place:
                    self._replay.workspace.write(part_leaf(leaf), part.detach())
        return results

    def begin(self, operation: Operation, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return self._replay.gradients.begin(operation, args, kwargs)

    def end(self, operation: Operation, span: Any, output: Any) -> None:
        self._replay.gradients.end(operation, span, output)

    def invoke(self, operation: Operation, args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, Tensors]:
        return self._replay.invoker.invoke(operation, args, kwargs)

    def build_arguments(self, operation: Operation, wholes: Tensors) -> tuple[list[Any], dict[str, Any]]:
        return self._replay.invoker.build_arguments(operation, lambda leaf: wholes[leaf.slot])


def call_together(contributions: Sequence[SpreadContribution]) -> Sequence[Tensors]:
    """Make the call once; all ranks get the whole results."""
    first = contributions[0]
    if len({(item.operation.prefix, item.operation.op) for item in contributions}) > 1:
        names = ", ".join(item.operation.name for item in contributions)
        raise NotReplayedError(f"its ranks make different calls with distributed tensors: {names}")
    wholes = {leaf.slot: _find_whole(leaf, contributions) for leaf in first.operation.inputs}
    if first.operation.prefix == "Autograd":
        (result,) = first.operation.outputs
        assert result.sharding is not None
        parts = [next(iter(item.values.values())) for item in contributions]
        return [{result.slot: combine(parts, result.sharding)} for _ in contributions]
    args, kwargs = first.calls.build_arguments(first.operation, wholes)
    spans = [item.calls.begin(item.operation, args, kwargs) for item in contributions]
    output, found = first.calls.invoke(first.operation, args, kwargs)
    for item, span in zip(contributions, spans, strict=True):
        item.calls.end(item.operation, span, output)
    return [found for _ in contributions]


def _find_whole(leaf: Leaf, contributions: Sequence[SpreadContribution]) -> torch.Tensor:
    if leaf.sharding is None or leaf.slot not in contributions[0].parts:
        return contributions[0].values[leaf.slot]
    whole = combine([item.values[leaf.slot] for item in contributions], leaf.sharding)
    for item in contributions:
        own = next(given for given in item.operation.inputs if given.slot == leaf.slot)
        item.calls.tensors.add(own, whole)
    return whole


def find_sharding(leaves: Sequence[Leaf]) -> Sharding:
    """Of the distributed tensors of a call, which all lie on one mesh. NotReplayedError where they do not."""
    found = list(_shardings(leaves))
    if len({(sharding.mesh_ranks, sharding.mesh_shape) for sharding in found}) != 1:
        raise NotReplayedError("its distributed tensors do not lie on one mesh")
    return found[0]


def _shardings(leaves: Sequence[Leaf]) -> Iterator[Sharding]:
    return (leaf.sharding for leaf in leaves if leaf.sharding is not None)


def is_spread_call(operation: Operation) -> bool:
    """Is it a call with distributed tensors, or one that makes them?"""
    return not operation.is_module and is_spread([*operation.inputs, *operation.outputs])


def is_inside_spread(operation: Operation) -> bool:
    """Is it how torch carries out one of the functions that are known here?"""
    return (operation.inside or "").startswith(FUNCTIONS)


def is_arranging(operation: Operation) -> bool:
    """Does it only let distributed tensors lie otherwise, or is it inside of what does?"""
    return is_inside_spread(operation) or operation.name.startswith(FUNCTIONS)
