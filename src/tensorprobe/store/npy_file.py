"""The header of a `.npy` file. It is Python text, which is searched for three fields and never evaluated."""

from __future__ import annotations

import math
import mmap
import re

from tensorprobe.model.dtype import short_dtype
from tensorprobe.store.tensor_layout import (
    MAX_DIMENSIONS,
    TensorLayout,
    Unreadable,
    contiguous_strides,
    is_ml_dtype,
)

MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 10_000
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}

_DESCR = re.compile(r"""['"]descr['"]\s*:\s*(?:['"]([^'"]*)['"]|(\[))""")
_ORDER = re.compile(r"""['"]fortran_order['"]\s*:\s*(True|False)\b""")
_SHAPE = re.compile(r"""['"]shape['"]\s*:\s*\(([\d\sL,]*)\)""")
_PLAIN_DESCR = re.compile(r"([<>|=]?)([a-zA-Z?])(\d{0,4})")
_NAMES = {
    "b1": "bool",
    "?": "bool",
    **{f"i{size}": f"int{8 * size}" for size in (1, 2, 4, 8)},
    **{f"u{size}": f"uint{8 * size}" for size in (1, 2, 4, 8)},
    **{f"f{size}": f"float{8 * size}" for size in (2, 4, 8)},
    **{f"c{size}": f"complex{8 * size}" for size in (8, 16)},
}


def read_layout(content: mmap.mmap | bytes, dtype: str | None) -> TensorLayout:
    """Where its array lies. `dtype` names one that numpy writes as nameless bytes, such as bfloat16."""
    version = content[6] if len(content) > 6 else 1
    if version not in _LENGTH_BYTES:
        raise Unreadable(f"has version {version} of the .npy format, which is not known")
    start = 8 + _LENGTH_BYTES[version]
    length = int.from_bytes(content[8:start], "little")
    if length > MAX_HEADER_BYTES:
        raise Unreadable("has a header that is too large")
    begin = start + length
    if len(content) < begin:
        raise Unreadable("is cut off")
    name, is_big_endian, shape, is_fortran = _read_header(content[start:begin].decode("latin-1"), dtype)
    item_bytes = _item_bytes(name)
    size_bytes = math.prod(shape) * item_bytes
    strides = contiguous_strides(shape, is_fortran)
    return TensorLayout(name, shape, strides, begin, size_bytes, is_big_endian=is_big_endian)


def _read_header(text: str, dtype: str | None) -> tuple[str, bool, tuple[int, ...], bool]:
    descr, order, shape = _DESCR.search(text), _ORDER.search(text), _SHAPE.search(text)
    if not (descr and order and shape):
        raise Unreadable("has a header that makes no sense")
    if descr[2]:
        raise Unreadable("holds records with fields, not a tensor")
    sizes = [size.rstrip("L") for size in re.split(r"[,\s]+", shape[1]) if size]
    if len(sizes) > MAX_DIMENSIONS or not all(size.isdecimal() and len(size) < 20 for size in sizes):
        raise Unreadable("has a header that makes no sense")
    name, is_big_endian = _read_descr(descr[1], dtype)
    return name, is_big_endian, tuple(map(int, sizes)), order[1] == "True"


def _read_descr(text: str, dtype: str | None) -> tuple[str, bool]:
    found = _PLAIN_DESCR.fullmatch(text)
    if found is None:
        raise Unreadable("has a header that makes no sense")
    order, kind, size = found.groups()
    if kind == "O":
        raise Unreadable("holds a pickle, not a tensor")
    plain_name = short_dtype(dtype)
    if (kind == "V" or kind + size == "f1") and is_ml_dtype(plain_name, int(size or 0)):
        return plain_name, order == ">"
    if kind + size not in _NAMES:
        raise Unreadable(f"holds elements of the type {text!r}, which is not compared")
    return _NAMES[kind + size], order == ">"


def _item_bytes(name: str) -> int:
    if name == "bool":
        return 1
    bits = re.search(r"\d+", name)
    assert bits is not None
    return int(bits[0]) // 8
