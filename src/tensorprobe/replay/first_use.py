"""Which leaves the recorded calls of a step have taken, and when, and which only a compiled module knows about."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import cached_property

from tensorprobe.replay.program import Program
from tensorprobe.run.leaf import Leaf

COMPILED = "Jit"
"""What is recorded as one call, with parameters that are not among its arguments."""


class FirstUses:
    """By the number of a tensor, of its memory, and by the name of a parameter."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def is_known(self, leaf: Leaf, position: int) -> bool:
        """Have recorded calls taken it before so many records, and no compiled module that it is a parameter of?"""
        is_taken = any(self._positions.get(key, position) < position for key in _iter_keys(leaf))
        name = leaf.parameter or ""
        return is_taken and not any(name.startswith(path) and at < position for path, at in self._compiled.items())

    @cached_property
    def _compiled(self) -> dict[str, int]:
        """What the names of parameters of compiled modules begin with, and where each was called first. In a module
        that only calls something compiled there are other calls."""
        found: dict[str, int] = {}
        others = set[str]()
        for operation in self._program.walk():
            path = f"{operation.call.module_path}." if operation.call.module_path else ""
            if operation.prefix == COMPILED and path:
                found.setdefault(path, operation.position)
            elif not operation.is_module:
                others.add(path)
        return {path: at for path, at in found.items() if not any(other.startswith(path) for other in others)}

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
