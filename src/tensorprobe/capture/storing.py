"""Which tensors get a file. With task `replay` only those that cannot be computed again: what no recorded call made,
choices, and the results of calls that cannot be executed again."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

from tensorprobe.model.record import TensorLeaf

_MAX_TEXT = 1000
_REBUILT = frozenset(
    {
        *("int", "float", "str", "bool", "complex", "slice", "range", "ellipsis"),
        *("torch.dtype", "torch.device", "torch.Size", "torch.memory_format", "torch.layout"),
    }
)
"""The types of arguments that are no tensors and that a replay can make again from their records."""
_FLOATING = ("float", "bfloat", "complex", "half", "double")


class Storing(enum.IntEnum):
    """Which tensors of a tree get a file."""

    NONE = 0
    ALL = 1
    LEAVES = 2
    """Those that no recorded call made."""
    CHOICES = 3
    """Whole numbers and truth values: what was decided from numbers that are rounded."""

    def wants(self, leaf: TensorLeaf) -> bool:
        if self is Storing.LEAVES:
            return leaf.is_leaf
        if self is Storing.CHOICES:
            return not is_floating(leaf)
        return self is Storing.ALL


def storing_of_results(fields: dict[str, Any], *, is_pinned: bool, is_passed_on: bool) -> Storing:
    """With task `replay`, for a call with these arguments. `is_passed_on`: its results are made by calls inside it."""
    if is_passed_on:
        return Storing.LEAVES
    leaves = [leaf for role in ("input_args", "input_kwargs") for leaf in _iter_leaves(fields.get(role))]
    if is_pinned or not all(map(_is_rebuilt, leaves)):
        return Storing.ALL
    is_computed = any(isinstance(leaf, TensorLeaf) and is_floating(leaf) for leaf in leaves)
    return Storing.CHOICES if is_computed else Storing.NONE


def is_floating(leaf: TensorLeaf) -> bool:
    return leaf.dtype.rsplit(".", 1)[-1].lower().startswith(_FLOATING)


def _is_rebuilt(leaf: Any) -> bool:
    if isinstance(leaf, TensorLeaf):
        return leaf.type == "torch.Tensor"
    if not isinstance(leaf, dict):
        return True
    kind, value = leaf["type"], leaf.get("value")
    is_short = not isinstance(value, str) or len(value) < _MAX_TEXT
    return (kind in _REBUILT or kind.startswith("numpy.")) and is_short


def _iter_leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, list):
        for item in tree:
            yield from _iter_leaves(item)
    elif isinstance(tree, dict) and not isinstance(tree.get("type"), str):
        for item in tree.values():
            yield from _iter_leaves(item)
    else:
        yield tree
