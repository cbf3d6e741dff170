"""Recorded arguments as the values that a call can be made with.

A record may come from anyone. A value is made of its type's name by a fixed table, never by looking a name up; what the
table does not know cannot be given to a call again, and the call is then not replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorprobe.run.leaf import Leaf, is_tensor, read_leaf

_MAX_DEPTH = 64
_MAX_COUNT = 2**63
_PLAIN = {"int": int, "float": float, "str": str, "bool": bool}


class UnknownArgumentError(Exception):
    """What was recorded of an argument does not say its value."""


MakeTensor = Callable[[Leaf], Any]
MakeObject = Callable[[str, Any], Any]
"""From the name of a type and the recorded text of its value; UnknownArgumentError if it does not know it."""


def build_arguments(
    tree: Any, slot: str, tuples: frozenset[str], make_tensor: MakeTensor, make_object: MakeObject, depth: int = 0
) -> Any:
    """The values that were given: lists and tuples as they were, tensors as `make_tensor` makes them."""
    if depth > _MAX_DEPTH:
        raise UnknownArgumentError("arguments nested too deep")
    if isinstance(tree, list):
        items = [
            build_arguments(item, f"{slot}.{index}", tuples, make_tensor, make_object, depth + 1)
            for index, item in enumerate(tree)
        ]
        return tuple(items) if slot in tuples else items
    if is_tensor(tree):
        return make_tensor(read_leaf(tree, slot))
    if isinstance(tree, dict) and not isinstance(tree.get("type"), str):
        return {
            key: build_arguments(item, f"{slot}.{key}", tuples, make_tensor, make_object, depth + 1)
            for key, item in tree.items()
        }
    return build_plain(tree, make_object)


def build_plain(leaf: Any, make_object: MakeObject) -> Any:
    """An argument that is no tensor."""
    if not isinstance(leaf, dict):
        return leaf
    kind, value = leaf["type"], leaf.get("value")
    if kind in _PLAIN:
        if kind == "str" and isinstance(value, str) and value.endswith("…"):
            raise UnknownArgumentError("a text that was shortened")
        if kind == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if type(value) is _PLAIN[kind]:
            return value
    if kind == "slice" and isinstance(value, list) and len(value) == 3 and all(map(_is_index, value)):
        return slice(*value)
    if kind == "range" and isinstance(value, list) and len(value) == 3 and None not in value and value[2]:
        return range(*value) if all(map(_is_index, value)) else make_object(kind, value)
    if kind == "ellipsis":
        return Ellipsis
    if kind == "complex" and isinstance(value, str):
        try:
            return complex(value)
        except ValueError:
            raise UnknownArgumentError(f"the complex number {value[:40]!r}") from None
    if kind.startswith("numpy.") and isinstance(value, (int, float)):
        return value
    return make_object(kind, value)


def _is_index(value: Any) -> bool:
    return value is None or (isinstance(value, int) and abs(value) < _MAX_COUNT)
