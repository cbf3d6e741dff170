"""The tensors of a record with all that a replay needs: which tensor of the program each is, and how it lies in memory.

Their statistics are in the slots of a call. A record may come from anyone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tensorprobe.model.record import Sharding
from tensorprobe.model.undefined import is_undefined

_MAX_DIMENSIONS = 64
_MAX_DEPTH = 64
_MAX_COUNT = 2**63
STATE_ROLES = ("parameters", "buffers")
"""What a module call finds beside its arguments."""
LENT = "lent"
"""The field of a tensor whose file is that of another run."""
UPDATED = "updated"
"""The field of a tensor that a parameter became, by a call that says nothing of it: which, and by what."""
UNASKED = "unasked"
"""The field of a tensor that could have a gradient, of which the record shows that nobody asked for it."""
WRITTEN = "written"
"""The name of the places of what a call wrote to: `written.input.1` is its second argument afterwards."""
_SLOT_OF_FIELD = {
    "input_args": "input",
    "input_kwargs": "kwargs",
    "output": "output",
    "parameters": "parameters",
    "buffers": "buffers",
    "input": "input",
    "output_kwargs": "kwargs",
    WRITTEN: WRITTEN,
}


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


def change_leaves(tree: Any, slot: str, change: Callable[[Leaf], dict[str, Any]], depth: int = 0) -> Any:
    """The same tree with other fields of its tensors. What is nested too deep is built into no call."""
    if depth > _MAX_DEPTH:
        return tree
    if isinstance(tree, list):
        return [change_leaves(item, f"{slot}.{index}", change, depth + 1) for index, item in enumerate(tree)]
    if is_tensor(tree):
        return {**tree, **change(read_leaf(tree, slot))}
    if isinstance(tree, dict) and not isinstance(tree.get("type"), str):
        return {key: change_leaves(item, f"{slot}.{key}", change, depth + 1) for key, item in tree.items()}
    return tree


def iter_named_leaves(fields: Mapping[str, Any]) -> Iterator[tuple[str, Leaf]]:
    """The tensors of a record by their places. What stands in no field of a call is the gradient of a parameter of that
    name."""
    for name, tree in fields.items():
        for leaf in iter_leaves(tree, _SLOT_OF_FIELD.get(name, name)):
            yield (leaf.slot if name in _SLOT_OF_FIELD else name), leaf


def backward_leaves(fields: Mapping[str, Any]) -> tuple[dict[str, Leaf], dict[str, Leaf]]:
    """Of a backward record: the gradients of the results, by their places in the forward record, and those of the
    arguments."""
    arriving = {leaf.slot.replace("input", "output", 1): leaf for leaf in iter_leaves(fields.get("input"), "input")}
    departing = {leaf.slot.replace("output", "input", 1): leaf for leaf in iter_leaves(fields.get("output"), "output")}
    departing.update((leaf.slot, leaf) for leaf in iter_leaves(fields.get("output_kwargs"), "kwargs"))
    return arriving, departing


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


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_COUNT else None


def _numbers(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) > _MAX_DIMENSIONS:
        return None
    numbers = [_number(item) for item in value]
    return None if any(number is None for number in numbers) else tuple(numbers)  # type: ignore[arg-type]
