"""What calls write to."""

from __future__ import annotations

import torch

from tensorprobe.replay.program import Operation, Program
from tensorprobe.run.leaf import WRITTEN, Leaf


def is_written(operation: Operation, leaf: Leaf) -> bool:
    """Is this result an argument that the call wrote to?"""
    return operation.writes_in_place or leaf.slot.startswith(WRITTEN)


def find_written(program: Program) -> frozenset[int]:
    """The storages that calls write to in place."""
    return frozenset(
        leaf.storage
        for operation in program.calls()
        for leaf in (*operation.inputs, *operation.outputs)
        if leaf.storage is not None and is_written(operation, leaf)
    )


def write_into(memory: torch.Tensor, content: torch.Tensor) -> bool:
    """No, where it cannot be written to: a dump that is not what was executed."""
    try:
        memory.data.copy_(content)
    except RuntimeError:
        return False
    return True
