"""The records of the gradients of parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensorprobe.replay.program import Program
from tensorprobe.run.leaf import Leaf, iter_leaves


@dataclass(frozen=True)
class ParameterGradient:
    """The record of the gradient of one parameter."""

    record: str
    slot: str
    leaf: Leaf


def parameter_gradients(program: Program) -> Iterator[tuple[str, ParameterGradient]]:
    """The gradients of parameters by their dotted names."""
    for record, fields in program.gradients.items():
        call = program.run.by_name[record]
        if call.kind == "parameters_grad":
            for slot, tree in fields.items():
                leaf = next(iter_leaves(tree, slot), None)
                if leaf is not None:
                    yield f"{call.path}.{slot}".strip("."), ParameterGradient(record, slot, leaf)
