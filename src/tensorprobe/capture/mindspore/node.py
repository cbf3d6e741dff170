"""The nodes of MindSpore's graph: each look at one makes another object."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from mindspore._c_expression import BackwardNodePy

_COMPILED = "bprop_builder"


def identity_of(node: Any) -> Any:
    """What is the same for two looks at the same node."""
    return node._unique_id()


def identity_by_number(node: Any) -> Any:
    """The same, before MindSpore 2.9: nodes are numbered, but for those of inputs and parameters, which have names."""
    return node.name() if node.is_leaf() else node._sequence_nr()


if not hasattr(BackwardNodePy, "_unique_id"):
    identity_of = identity_by_number


Kind = tuple[tuple[int, ...], str]
"""The shape and the dtype of a gradient."""


def compiled_edges(node: Any) -> list[Kind | None] | None:
    """Of the node of a compiled function, what its gradients look like; None where nothing is differentiated. None for
    every other node."""
    if _COMPILED not in node.name():
        return None
    return [None if parent is None else _kind_at(parent, number) for parent, number in node.next_functions]


def spread_gradients(gradients: Sequence[Any], edges: Sequence[Kind | None]) -> list[Any] | None:
    """A compiled function leaves out the gradients that nobody asked for: the rest by the position of their edges. None
    if it cannot be told which they are."""
    if len(gradients) == len(edges):
        return list(gradients)
    kept = [position for position, edge in enumerate(edges) if edge is not None]
    if len(kept) != len(gradients):
        kinds = [(tuple(gradient.shape), str(gradient.dtype)) for gradient in gradients if gradient is not None]
        ways = [way for way in combinations(kept, len(gradients)) if [edges[position] for position in way] == kinds]
        if len(ways) != 1:
            return None
        kept = list(ways[0])
    found: list[Any] = [None] * len(edges)
    for position, gradient in zip(kept, gradients, strict=True):
        found[position] = gradient
    return found


def _kind_at(parent: Any, number: int) -> Kind:
    known = getattr(parent, "_input_metadata", ())
    return (tuple(known[number].shape), str(known[number].dtype)) if number < len(known) else ((-1,), "")
