"""The leaves of a record: every tensor and every plain argument, with the dotted name of its place.

    input.0   input.1.1   kwargs.other   settings.epsilon   output.0   parameters.weight   buffers.running_mean

These are the names of the tensor files too. A record may come from anyone: fields of an unexpected type are taken as
absent, and the walk uses no recursion, because JSON can be nested deeper than Python's stack.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from tensorprobe.model.record import Number
from tensorprobe.model.undefined import is_undefined
from tensorprobe.store.sketch import COUNT

# A backward call gives its keyword arguments their gradients: there they are results.
_SLOT_OF_FIELD = {"input_args": "input", "input_kwargs": "kwargs", "output_kwargs": "kwargs"}
_INPUT_FIELDS = frozenset({"input_args", "input_kwargs", "input", "parameters", "buffers", "settings"})
_NO_SLOTS = frozenset({"autocast", "tuples", "generator_state", "mask", "written", "calls"})
"""Fields that say how a call was made, for a replay: no arguments and no results."""
_MAX_INTEGER = 2**64  # no dtype holds a larger one
_MAX_COUNT = 2**63
_MAX_DIMENSIONS = 64  # torch and numpy have no more
_MAX_NAME_CHARACTERS = 250
"""Every leaf repeats the keys above it: one long key and many leaves would be more than memory holds."""


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that makes each take several times as long, and there are many
class TensorSlot:
    """One tensor in one place of a record."""

    slot: str
    type: str
    dtype: str | None
    shape: tuple[int, ...] | None
    max: Number
    min: Number
    mean: Number
    norm: Number
    nan_count: int | None
    """None when the dump has no counts, as msprobe's have none."""
    inf_count: int | None
    requires_grad: bool | None
    checksum: str | None
    data_name: str | None
    source: str | None
    """The record that produced this value."""
    reason: str | None
    """Why there are no statistics."""
    note: str | None
    is_input: bool
    """Did the call read it, or did it compute it?"""
    sketch: tuple[float, ...] | None = None
    """None in dumps that have none, as msprobe's."""
    parameter: str | None = None
    """The name of the parameter that it is, where the model has it."""

    @property
    def has_nan(self) -> bool:
        if self.nan_count is None:
            return _is_nan(self.max) or _is_nan(self.min)
        return self.nan_count > 0

    @property
    def has_inf(self) -> bool:
        if self.inf_count is None:
            return _is_inf(self.max) or _is_inf(self.min)
        return self.inf_count > 0

    @property
    def is_undefined(self) -> bool:
        """Does its content mean nothing, because nobody has written to its memory, or because it comes from such?"""
        return is_undefined(self.note)

    @property
    def element_count(self) -> int | None:
        return None if self.shape is None else math.prod(self.shape)


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that makes each take several times as long, and there are many
class PlainSlot:
    """One argument or result that is no tensor."""

    slot: str
    type: str
    value: Any
    is_input: bool = False


Slot = TensorSlot | PlainSlot


def iter_record_slots(fields: dict[str, Any]) -> Iterator[Slot]:
    """The slots of an entry of dump.json: of every field that holds leaves, in their order."""
    for field, tree in fields.items():
        if not tree or not isinstance(tree, (list, dict)) or field in _NO_SLOTS:
            continue
        slot, is_input = _SLOT_OF_FIELD.get(field, field), field in _INPUT_FIELDS
        if isinstance(tree, list):  # as a rule of tensors: none of them needs a walk
            for index, node in enumerate(tree):
                place = _join(slot, str(index))
                if _is_tensor(node):
                    yield _read_tensor(place, node, is_input)
                else:
                    yield from iter_slots(node, place, is_input)
        else:
            yield from iter_slots(tree, slot, is_input)


def iter_gradient_slots(fields: dict[str, Any]) -> Iterator[Slot]:
    """The slots of a parameters_grad entry, `{"weight": [LEAF]}`; a list of one adds nothing to the name."""
    for name, tree in fields.items():
        yield from iter_slots(tree[0] if isinstance(tree, list) and len(tree) == 1 else tree, name)


def iter_slots(tree: Any, slot: str, is_input: bool = False) -> Iterator[Slot]:
    """The leaves of a nesting, depth first."""
    waiting = [(slot, tree)]
    while waiting:
        place, node = waiting.pop()
        if isinstance(node, list):
            waiting.extend((_join(place, str(index)), node[index]) for index in range(len(node) - 1, -1, -1))
        elif isinstance(node, dict) and not isinstance(node.get("type"), str):
            waiting.extend((_join(place, key), node[key]) for key in reversed(node))
        elif _is_tensor(node):
            yield _read_tensor(place, node, is_input)
        elif isinstance(node, dict):
            yield PlainSlot(place, node["type"], node.get("value"), is_input)
        else:
            yield PlainSlot(place, type(node).__name__, node, is_input)


def _is_tensor(node: Any) -> bool:
    return type(node) is dict and type(node.get("type")) is str and ("shape" in node or "dtype" in node)


_TEXTS = ("dtype", "hash", "md5", "data_name", "source", "reason", "note", "parameter")
_NUMBERS = ("Max", "Min", "Mean", "Norm")


def _read_tensor(slot: str, leaf: dict[str, Any], is_input: bool) -> TensorSlot:
    """Most of the time of reading a dump is spent here: what is usual is told by its type, without a call."""
    get = leaf.get
    has_counts = "nan_count" in leaf or "inf_count" in leaf
    texts = [value if type(value) is str else None for value in map(get, _TEXTS)]
    largest, smallest, mean, norm = [value if type(value) is float else _number(value) for value in map(get, _NUMBERS)]
    requires_grad, sketch = get("requires_grad"), get("Sketch")
    dtype, digest, md5, data_name, source, reason, note, parameter = texts
    return TensorSlot(  # by position: by name each would take twice as long
        slot,
        leaf["type"],
        dtype,
        _shape(get("shape")),
        largest,
        smallest,
        mean,
        norm,
        _count(get("nan_count")) if has_counts else None,
        _count(get("inf_count")) if has_counts else None,
        requires_grad if type(requires_grad) is bool else None,
        digest or md5,
        data_name,
        source,
        reason,
        note,
        is_input,
        None if sketch is None else _sketch(sketch),
        parameter,
    )


def _join(place: str, key: str) -> str:
    name = f"{place}.{key}" if place else key
    if len(name) <= _MAX_NAME_CHARACTERS:
        return name
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{name[: _MAX_NAME_CHARACTERS - 20]}~{digest}"


def _number(value: Any) -> Number:
    """Of an integer that no tensor can hold, a float could not be made."""
    if isinstance(value, int) and abs(value) > _MAX_INTEGER:
        return None
    return value if isinstance(value, (bool, int, float)) else None


def _sketch(value: Any) -> tuple[float, ...] | None:
    """Four finite numbers; of anything else nothing can be said."""
    if not isinstance(value, list) or len(value) != COUNT or any(isinstance(number, bool) for number in value):
        return None
    if not all(isinstance(number, float) or is_within(number) for number in value):
        return None
    return tuple(map(float, value)) if all(map(math.isfinite, value)) else None


def is_within(number: Any) -> bool:
    """An integer that a float can stand for."""
    return isinstance(number, int) and abs(number) <= _MAX_INTEGER


def _count(value: Any) -> int:
    """None of them where the dump says nothing of this kind."""
    return int(value) if is_count(value) else 0


def _shape(value: Any) -> tuple[int, ...] | None:
    """Only one that a tensor can have: its number of elements fits into 64 bits."""
    if not isinstance(value, list) or len(value) > _MAX_DIMENSIONS:
        return None
    count = 1
    for size in value:
        if type(size) is not int or not 0 <= size <= _MAX_COUNT:
            return None
        count *= size
    return tuple(value) if count <= _MAX_COUNT else None


def is_count(value: Any) -> bool:
    """A number of things that a run can have counted."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT


def _is_nan(number: Number) -> bool:
    return isinstance(number, float) and math.isnan(number)


def _is_inf(number: Number) -> bool:
    return isinstance(number, float) and math.isinf(number)
