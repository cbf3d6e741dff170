"""Nested arguments as plain data.

A tree is what a call was given or returned: any nesting of dict, list, tuple, namedtuple, dataclass, and leaves.
`map_tree` turns it into lists, dicts and leaves that JSON can carry, and tells the leaf function the dotted path it
stands at: `{"key2": ["a", "b"]}` has its "b" at `key2.1`. Indexes are 0-based. Named fields are keys, positions are
indexes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

LeafFunction = Callable[[Any, str], Any]

MAX_DEPTH = 32
"""A structure nested deeper than this is taken as a leaf: most likely it contains itself."""


def map_tree(tree: Any, path: str, leaf: LeafFunction, atoms: tuple[type, ...] = (), depth: int = 0) -> Any:
    """Rebuild `tree` as lists and dicts, with `leaf(value, path)` at its ends; instances of `atoms` are ends too."""
    if isinstance(tree, atoms) or depth >= MAX_DEPTH:
        return leaf(tree, path)
    children = named_children(tree)
    if children is not None:
        return {str(key): map_tree(item, f"{path}.{key}", leaf, atoms, depth + 1) for key, item in children}
    if isinstance(tree, (tuple, list)):
        return [map_tree(item, f"{path}.{index}", leaf, atoms, depth + 1) for index, item in enumerate(tree)]
    return leaf(tree, path)


def named_children(tree: Any) -> list[tuple[Any, Any]] | None:
    """The fields of a dict, a namedtuple or a dataclass; None for everything else."""
    if isinstance(tree, (list, str, int, float, type(None))):  # the frequent ends first
        return None
    if isinstance(tree, Mapping):
        return list(tree.items())
    if isinstance(tree, tuple) and isinstance(getattr(type(tree), "_fields", None), tuple):
        return list(zip(type(tree)._fields, tree, strict=False))  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [(field.name, getattr(tree, field.name, None)) for field in dataclasses.fields(tree)]
    return None
