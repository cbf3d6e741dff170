"""Files as MindSpore's `print_file_path` produces them, made by hand."""

from __future__ import annotations

import numpy as np


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    parts = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(part | 0x80 for part in parts[:-1]), parts[-1]])


def text_value(text: str) -> bytes:
    return field(1, field(1, text.encode()))


def tensor_value(tensor_type: str, dims: tuple[int, ...], content: bytes, *, is_packed: bool = False) -> bytes:
    sizes = b"".join(varint(size) if is_packed else varint(1 << 3) + varint(size) for size in dims)
    shape = field(1, sizes) if is_packed and dims else sizes
    return field(1, field(2, shape + field(2, tensor_type.encode()) + field(3, content)))


def array_value(array: np.ndarray) -> bytes:  # type: ignore[type-arg]
    name = {"bool": "Bool", "uint": "UInt"}.get(str(array.dtype).rstrip("0123456789"), str(array.dtype).capitalize())
    bits = "" if name == "Bool" else str(array.dtype.itemsize * 8) if name == "UInt" else ""
    return tensor_value(name + bits, array.shape, array.tobytes())
