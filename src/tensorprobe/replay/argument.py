"""Recorded arguments: the tensors among them, and all of them as the values that a call can be made with.

A record may come from anyone. A value is made of its type's name by a fixed table, never by looking a name up; what the
table does not know cannot be given to a call again, and the call is then not replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tensorprobe.model.record import Sharding
from tensorprobe.model.undefined import is_undefined

_MAX_DEPTH = 64
_MAX_DIMENSIONS = 64
_MAX_COUNT = 2**63
_PLAIN = {"int": int, "float": float, "str": str, "bool": bool}


class UnknownArgumentError(Exception):
    """What was recorded of an argument does not say its value."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor in one place of a record."""

    slot: str
    dtype: str
    """`float32`, without the framework's name."""
    shape: tuple[int, ...]
    requires_grad: bool
    data_name: str | None
    source: str | None
    tensor: int | None
    """Which tensor of the program it is; None where the dump does not say."""
    storage: int | None
    offset: int
    stride: tuple[int, ...] | None
    """None for a contiguous tensor."""
    parameter: str | None
    fields: Mapping[str, Any]
    sharding: Sharding | None = None
    """How a distributed tensor lies on its ranks: its file has the part of one rank."""

    @property
    def is_floating(self) -> bool:
        return self.dtype.startswith(("float", "bfloat", "complex", "half", "double"))

    @property
    def element_count(self) -> int:
        return math.prod(self.shape)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """That of its file."""
        return self.shape if self.sharding is None else self.sharding.local_shape

    @property
    def is_undefined(self) -> bool:
        """Does what it held mean nothing?"""
        note = self.fields.get("note")
        return isinstance(note, str) and is_undefined(note)

    @property
    def layout(self) -> tuple[Any, ...] | None:
        """What decides, with the content of its storage, what it shows."""
        if self.storage is None:
            return None
        return (self.storage, self.offset, self.shape, self.stride, self.dtype, self.is_conjugated, self.is_negated)

    @property
    def view_of(self) -> int | None:
        """The number of the tensor that it is a view of, where no recorded call took it."""
        return _number(self.fields.get("view_of"))

    @property
    def starts_graph(self) -> bool:
        """Do gradients end in it, though a call made what it holds?"""
        return self.fields.get("starts_graph") is True

    @property
    def is_conjugated(self) -> bool:
        """Does it show the complex conjugates of what is in its storage?"""
        return self.fields.get("conjugated") is True

    @property
    def is_negated(self) -> bool:
        return self.fields.get("negated") is True


def iter_leaves(tree: Any, slot: str) -> Iterator[Leaf]:
    """The tensors of a recorded tree, depth first."""
    waiting = [(slot, tree)]
    while waiting:
        place, node = waiting.pop()
        if isinstance(node, (list, tuple)):
            waiting.extend((f"{place}.{index}", node[index]) for index in range(len(node) - 1, -1, -1))
        elif is_tensor(node):
            yield read_leaf(node, place)
        elif isinstance(node, dict) and not isinstance(node.get("type"), str):
            waiting.extend((f"{place}.{key}", node[key]) for key in reversed(node))


def is_tensor(node: Any) -> bool:
    return isinstance(node, dict) and isinstance(node.get("type"), str) and "shape" in node and "dtype" in node


def read_leaf(node: Mapping[str, Any], slot: str) -> Leaf:
    """One tensor as its record describes it."""
    shape = _numbers(node.get("shape"))
    stride = _numbers(node.get("stride")) if "stride" in node else None
    return Leaf(
        slot=slot,
        dtype=dtype_name(node.get("dtype")),
        shape=shape if shape is not None else (),
        requires_grad=node.get("requires_grad") is True,
        data_name=node["data_name"] if isinstance(node.get("data_name"), str) else None,
        source=node["source"] if isinstance(node.get("source"), str) else None,
        tensor=_number(node.get("tensor")),
        storage=_number(node.get("storage")),
        offset=_number(node.get("offset")) or 0,
        stride=stride if stride is not None and shape is not None and len(stride) == len(shape) else None,
        parameter=node["parameter"] if isinstance(node.get("parameter"), str) else None,
        fields=node,
        sharding=_read_sharding(node) if "placements" in node else None,
    )


def _read_sharding(node: Mapping[str, Any]) -> Sharding | None:
    mesh = node.get("mesh")
    mesh = mesh if isinstance(mesh, dict) else {}
    placements, local = node.get("placements"), _numbers(node.get("local_shape"))
    shape, ranks = _numbers(mesh.get("shape")), _numbers(mesh.get("ranks"))
    if not isinstance(placements, list) or local is None or shape is None or 0 in shape:
        return None
    if ranks is None or len(ranks) != math.prod(shape) or len(placements) != len(shape):
        ranks = ()  # as earlier versions recorded it
    return Sharding(tuple(map(str, placements)), shape, None, local, ranks)


def dtype_name(text: Any) -> str:
    """`float32` for `torch.float32` and `Float32`.

    >>> dtype_name("torch.bfloat16"), dtype_name("Float32")
    ('bfloat16', 'float32')
    """
    return text.rsplit(".", 1)[-1].lower() if isinstance(text, str) else ""


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


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_COUNT else None


def _numbers(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) > _MAX_DIMENSIONS:
        return None
    numbers = [_number(item) for item in value]
    return None if any(number is None for number in numbers) else tuple(numbers)  # type: ignore[arg-type]
