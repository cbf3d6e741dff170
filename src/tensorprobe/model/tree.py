"""Nested arguments as plain data.

A tree is what a call was given or returned: any nesting of dict, list, tuple, namedtuple, dataclass, and leaves.
`map_tree` turns it into lists, dicts and leaves that JSON can carry, and tells the leaf function the dotted path it
stands at: `{"key2": ["a", "b"]}` has its "b" at `key2.1`. Indexes are 0-based. Named fields are keys, positions are
indexes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

MAX_PLAIN_ITEMS = 1000
"""A longer list of plain values, such as the data of a tensor that is made from it, is one leaf."""
_MAX_PATH = 200  # a container may be inside itself
PLAIN_ENDS: frozenset[type] = frozenset({str, int, float, bool, type(None)})
"""Types that are ends of every tree, and are known at a glance."""
_NESTED = (list, tuple, Mapping)

LeafFunction = Callable[[Any, str], Any]


def map_tree(
    tree: Any, path: str, leaf: LeafFunction, atoms: tuple[type, ...] = (), above: tuple[int, ...] = ()
) -> Any:
    """Rebuild `tree` as lists and dicts, with `leaf(value, path)` at its ends.

    Instances of `atoms` are ends too, and so is a container where it is met again inside itself; `above` holds the
    addresses of the containers around `tree`.
    """
    kind = type(tree)
    if kind in PLAIN_ENDS or isinstance(tree, atoms):
        return leaf(tree, path)
    children = named_children(tree) if kind is not tuple and kind is not list else None
    if (children is None and not isinstance(tree, (tuple, list))) or id(tree) in above:
        return leaf(tree, path)
    above = (*above, id(tree))
    if children is None and len(tree) > MAX_PLAIN_ITEMS and not any(isinstance(item, _NESTED + atoms) for item in tree):
        return leaf(tree, path)
    if children is None:
        return [map_tree(item, f"{path}.{index}", leaf, atoms, above) for index, item in enumerate(tree)]
    result: dict[str, Any] = {}
    for key, item in children:
        text = str(key) if str(key) not in result else f"{key} ({type(key).__name__})"  # {1: …, "1": …}
        result[text] = map_tree(item, f"{path}.{text}", leaf, atoms, above)
    return result


def has_nested(items: Iterable[Any]) -> bool:
    """Is one of these a container that `tuple_paths` looks into?"""
    return any(isinstance(item, (tuple, list, dict)) for item in items)


def is_plain(items: Iterable[Any]) -> bool:
    """Are all of these ends of which nothing more is to be said than what they are?"""
    return PLAIN_ENDS.issuperset(map(type, items))


def tuple_paths(tree: Any, path: str) -> list[str]:
    """Where in the arguments of a call tuples are: JSON has only lists.

    >>> tuple_paths((1, (2, [3, (4,)])), "input")
    ['input.1', 'input.1.1.1']
    """
    found: list[str] = []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, item in items:
        if isinstance(item, (tuple, list, dict)) and not hasattr(type(item), "_fields"):
            place = f"{path}.{key}"
            if isinstance(item, tuple):
                found.append(place)
            if len(item) <= MAX_PLAIN_ITEMS and len(place) < _MAX_PATH:
                found += tuple_paths(item, place)
    return found


def named_children(tree: Any) -> list[tuple[Any, Any]] | None:
    """The fields of a dict, a namedtuple or a dataclass; None for everything else."""
    if isinstance(tree, (list, str, int, float, type(None))):  # the frequent ends first
        return None
    if isinstance(tree, (dict, Mapping)):
        return list(tree.items())
    if isinstance(tree, tuple) and isinstance(getattr(type(tree), "_fields", None), tuple):
        return list(zip(type(tree)._fields, tree, strict=False))  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [(field.name, getattr(tree, field.name, None)) for field in dataclasses.fields(tree)]
    return None
