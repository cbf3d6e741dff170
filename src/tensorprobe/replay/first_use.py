"""Which leaves the recorded calls of a step have taken, and when."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import cached_property

from tensorprobe.replay.program import Program
from tensorprobe.run.leaf import Leaf


class FirstUses:
    """By the number of a tensor, of its memory, and by the name of a parameter."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def is_used(self, leaf: Leaf, position: int) -> bool:
        """Before so many records."""
        return any(self._positions.get(key, position) < position for key in _iter_keys(leaf))

    @cached_property
    def _positions(self) -> dict[Hashable, int]:
        found: dict[Hashable, int] = {}
        for operation in self._program.walk():
            for leaf in () if operation.is_module else (*operation.operands, *operation.outputs):
                for key in _iter_keys(leaf):
                    found.setdefault(key, operation.position)
        return found


def _iter_keys(leaf: Leaf) -> Iterator[Hashable]:
    if leaf.tensor is not None:
        yield "tensor", leaf.tensor
    if leaf.storage is not None:
        yield "storage", leaf.storage
    if leaf.parameter is not None:
        yield "parameter", leaf.parameter
