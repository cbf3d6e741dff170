"""The losses of a step: from which tensors gradients are asked for, and which calls made them what they were then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensorprobe.replay.program import Operation, Program
from tensorprobe.run.backward_pass import BackwardPass
from tensorprobe.run.leaf import Leaf


@dataclass(frozen=True)
class Roots:
    """Of a step's backward passes."""

    makers: frozenset[tuple[int, str]] = frozenset()
    """Each tensor with the calls that made it."""

    def has(self, operation: Operation, leaf: Leaf) -> bool:
        """Is this result of a call one of them?"""
        return (leaf.tensor, operation.name) in self.makers


def find_roots(program: Program, passes: Sequence[BackwardPass]) -> Roots:
    """Those of the last gradients: not those that a loss is made of. What a loss was before something was added to it
    in place is no loss."""
    asked = [one for one in passes if one.accumulates or not one.creates_graph] or passes
    losses = [(root.tensor, one.position) for one in asked for root in one.roots if root and root.tensor is not None]
    tensors = {tensor for tensor, _ in losses}
    calls = [one for one in program.calls() if any(leaf.tensor in tensors for leaf in one.outputs)]
    return Roots(frozenset(maker for tensor, position in losses for maker in _iter_makers(calls, tensor, position)))


def _iter_makers(calls: Sequence[Operation], tensor: int, position: int) -> Iterator[tuple[int, str]]:
    makers = [one for one in calls if any(leaf.tensor == tensor for leaf in one.outputs)]
    before = [one for one in makers if one.position < position] or makers
    last = max((index for index, one in enumerate(before) if _changes(one, tensor)), default=0)
    yield from ((tensor, one.name) for one in before[last:])


def _changes(operation: Operation, tensor: int) -> bool:
    return operation.prefix != "Autograd" and any(leaf.tensor == tensor for leaf in operation.inputs)
