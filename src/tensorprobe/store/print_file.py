"""The file that MindSpore's `print_file_path` produces: what `Print` was given, as texts and tensors.

    Print { repeated Value value = 1 { oneof: string desc = 1;  TensorProto tensor = 2 {
        repeated int64 dims = 1;  string tensor_type = 2;  bytes tensor_content = 3 } } }

in protobuf's wire format, which is read here without protobuf and without MindSpore. No length is believed before it
was held against what is left of the message around it.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorprobe.model.dtype import short_dtype
from tensorprobe.store import narrow_float
from tensorprobe.store.tensor_layout import MAX_DIMENSIONS, Unreadable, is_numpy_dtype, is_size, quote

Array = np.ndarray[Any, Any]
Content = mmap.mmap | bytes

_VARINT, _FIXED_64, BYTES, _FIXED_32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED_64: 8, _FIXED_32: 4}
_MAX_VARINT_BYTES = 10
_MAX_TYPE_BYTES = 100


@dataclass(frozen=True, slots=True)
class PrintedTensor:
    """A tensor of the file: its numbers are those that the file claims; `make_array` checks them."""

    dims: tuple[int, ...]
    tensor_type: str
    begin: int
    end: int


def read_values(content: Content) -> Iterator[str | PrintedTensor]:
    """What was printed, in its order. Raises `Unreadable` where the file makes no sense any more, and says where."""
    for number, wire_type, begin, end in iter_fields(content, 0, len(content)):
        if number == 1 and wire_type == BYTES:
            value = _read_value(content, begin, end)
            if value is not None:
                yield value


def make_array(content: Content, tensor: PrintedTensor) -> Array:
    """The elements of a tensor, in memory of their own. bfloat16 and float8 are widened to float32."""
    dtype = short_dtype(tensor.tensor_type)
    item_bytes = item_bytes_of(dtype)
    if item_bytes is None:
        raise Unreadable(f"holds a tensor of the type {quote(tensor.tensor_type)}, which is not converted")
    size = tensor.end - tensor.begin
    dims = () if tensor.dims == (0,) and size == item_bytes else tensor.dims  # how MindSpore writes a single number
    if len(dims) > MAX_DIMENSIONS or math.prod(dims) * item_bytes != size:
        raise Unreadable(f"holds a tensor of {size} bytes whose shape {list(dims)} needs another number of them")
    try:
        return _decode(content[tensor.begin : tensor.end], dtype, item_bytes).reshape(dims)
    except (ValueError, OverflowError):  # empty, and yet larger than any address in its other dimensions
        raise Unreadable(f"holds a tensor whose shape {list(dims)} makes no sense") from None


def item_bytes_of(dtype: str) -> int | None:
    """How many bytes an element takes; None for what is not converted."""
    return narrow_float.item_bytes(dtype) or (np.dtype(dtype).itemsize if is_numpy_dtype(dtype) else None)


def _decode(data: bytes, dtype: str, item_bytes: int) -> Array:
    if narrow_float.item_bytes(dtype) is not None:
        return narrow_float.widen_bits(np.frombuffer(data, f"<u{item_bytes}"), dtype)
    if dtype == "bool":
        return np.asarray(np.frombuffer(data, np.uint8) != 0)
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).astype(dtype)


def _read_value(content: Content, begin: int, end: int) -> str | PrintedTensor | None:
    value: str | PrintedTensor | None = None
    for number, wire_type, start, stop in iter_fields(content, begin, end):
        if wire_type == BYTES and number == 1:
            value = content[start:stop].decode("utf-8", "replace")
        elif wire_type == BYTES and number == 2:
            value = read_tensor(content, start, stop)
    return value


def read_tensor(content: Content, begin: int, end: int) -> PrintedTensor:
    """The message of a tensor."""
    dims: list[int] = []
    tensor_type, place = "", (begin, begin)
    for number, wire_type, start, stop in iter_fields(content, begin, end):
        if number == 1 and wire_type in (_VARINT, BYTES):
            while start < stop:  # one number, or several that are packed
                size, start = _read_varint(content, start, stop)
                dims.append(size)
                if len(dims) > MAX_DIMENSIONS or not is_size(size):
                    raise Unreadable(f"has a tensor with impossible dimensions at byte {begin}")
        elif number == 2 and wire_type == BYTES:
            tensor_type = content[start : min(stop, start + _MAX_TYPE_BYTES)].decode("utf-8", "replace")
        elif number == 3 and wire_type == BYTES:
            place = (start, stop)
    return PrintedTensor(tuple(dims), tensor_type, *place)


def iter_fields(content: Content, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message: number, wire type, and where the value begins and ends."""
    position = begin
    while position < end:
        at = position
        tag, position = _read_varint(content, position, end)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            _, stop = _read_varint(content, position, end)
        elif wire_type == BYTES:
            length, position = _read_varint(content, position, end)
            stop = position + length
        elif wire_type in _FIXED_BYTES:
            stop = position + _FIXED_BYTES[wire_type]
        else:
            raise Unreadable(f"makes no sense at byte {at}")
        if number == 0:
            raise Unreadable(f"makes no sense at byte {at}")
        if stop > end:
            raise Unreadable(f"is cut off: what begins at byte {at} should end at byte {stop}, of {end}")
        yield number, wire_type, position, stop
        position = stop


def _read_varint(content: Content, position: int, end: int) -> tuple[int, int]:
    number = 0
    for count in range(_MAX_VARINT_BYTES):
        if position + count >= end:
            raise Unreadable(f"is cut off at byte {end}")
        byte = content[position + count]
        number |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return number, position + count + 1
    raise Unreadable(f"makes no sense at byte {position}")
