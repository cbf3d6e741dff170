"""Where in a file the elements of a tensor lie, checked before anything is read there."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorprobe.errors import UsageError
from tensorprobe.foreign_text import shorten

MAX_DIMENSIONS = 32  # numpy 1.x has no more
_MAX_SIZE = 2**63
"""What a file says of a size, a stride or an offset is below this: no address is larger."""
_MAX_SHOWN_CHARACTERS = 100
MAX_REPEATED_BYTES = 1 << 30
"""Of a tensor whose elements share memory: a few bytes may stand for any number of them."""

_BY_NUMPY = {
    "float64": "f8",
    "float32": "f4",
    "float16": "f2",
    "complex128": "c16",
    "complex64": "c8",
    "int64": "i8",
    "int32": "i4",
    "int16": "i2",
    "int8": "i1",
    "uint64": "u8",
    "uint32": "u4",
    "uint16": "u2",
    "uint8": "u1",
    "bool": "?",
}
_BY_ML_DTYPES = {
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}
COMPLEX_OF_HALVES = "complex32"
"""numpy has no such dtype: it is read as pairs of float16."""


class Unreadable(Exception):  # noqa: N818  a reason to put behind the name of a file
    """Why a file cannot be read, as a sentence whose subject is the file: "is cut off"."""


class NotDense(Unreadable):
    """The file is whole, but what it holds is no plain array."""


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """A tensor in a file. The numbers are those that the file claims; `make_array` checks them."""

    dtype: str
    """As torch names it, without `torch.`."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    begin: int
    """Where its storage lies in the file."""
    size_bytes: int
    offset: int = 0
    """Of the first element in the storage, in elements."""
    is_big_endian: bool = False
    is_conjugated: bool = False
    is_negated: bool = False


def make_array(content: mmap.mmap | bytes, layout: TensorLayout) -> np.ndarray[Any, Any]:
    """The array that a layout describes, without a copy where numpy can show it as it lies."""
    if layout.dtype == COMPLEX_OF_HALVES:
        return _join_halves(content, layout)
    dtype = numpy_dtype(layout.dtype)
    if dtype.itemsize > 1 and dtype.kind != "V":
        dtype = dtype.newbyteorder(">" if layout.is_big_endian else "<")
    elif dtype.itemsize > 1 and layout.is_big_endian:
        raise Unreadable(f"holds {layout.dtype} of a big-endian machine, which cannot be read here")
    _check(layout, dtype.itemsize, len(content))
    array = _show(content, layout, dtype)
    if layout.is_conjugated and dtype.kind == "c":
        array = array.conj()
    return -array if layout.is_negated and dtype.kind in "fc" else array


def check_shape(sizes: Any) -> tuple[int, ...]:
    """The shape of a tensor, of whatever a file has in its place. Asked before anything is computed with it: numbers of
    thousands of digits, or thousands of numbers, would cost more than the file itself."""
    if not isinstance(sizes, (list, tuple)) or not all(map(is_size, sizes[: MAX_DIMENSIONS + 1])):
        raise Unreadable("has a header that makes no sense")
    if len(sizes) > MAX_DIMENSIONS:
        raise Unreadable(f"has {len(sizes):,} dimensions")
    return tuple(sizes)


def is_size(number: Any) -> bool:
    """An integer that a size, a stride or an offset can be; True is none."""
    return type(number) is int and 0 <= number < _MAX_SIZE


def quote(text: str) -> str:
    """What a file says, for a message about it."""
    return repr(shorten(text, _MAX_SHOWN_CHARACTERS))


def contiguous_strides(shape: tuple[int, ...], is_fortran: bool = False) -> tuple[int, ...]:
    """In elements, of an array without gaps."""
    ordered = shape if is_fortran else shape[::-1]
    strides = [1]
    for size in ordered[:-1]:
        strides.append(strides[-1] * size)
    found = tuple(strides[: len(shape)])
    return found if is_fortran else found[::-1]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Of a dtype by torch's name. bfloat16 and the float8 kinds come from ml_dtypes."""
    if name in _BY_NUMPY:
        return np.dtype(_BY_NUMPY[name])
    if name not in _BY_ML_DTYPES:
        raise NotDense(f"has the dtype {shorten(name, _MAX_SHOWN_CHARACTERS)}, which is not compared")
    try:
        import ml_dtypes
    except ImportError:
        raise UsageError(f'{name} needs ml_dtypes to be read: pip install "tensorprobe[compare]"') from None
    return np.dtype(getattr(ml_dtypes, name))


def is_numpy_dtype(name: str) -> bool:
    """Does numpy have it by itself?"""
    return name in _BY_NUMPY


def is_ml_dtype(name: str, size_bytes: int) -> bool:
    """Is it one of the dtypes that numpy writes as nameless bytes, of this size?"""
    return _BY_ML_DTYPES.get(name) == size_bytes


def _show(content: mmap.mmap | bytes, layout: TensorLayout, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    try:
        if 0 in layout.shape:
            return np.empty(layout.shape, dtype)
        return np.ndarray(
            layout.shape,
            dtype,
            buffer=content,
            offset=layout.begin + layout.offset * dtype.itemsize,
            strides=tuple(stride * dtype.itemsize for stride in layout.strides),
        )
    except (ValueError, OverflowError):
        # Empty, and yet larger than any address in its other dimensions.
        raise Unreadable("has a header that makes no sense") from None


def _join_halves(content: mmap.mmap | bytes, layout: TensorLayout) -> np.ndarray[Any, Any]:
    parts = make_array(
        content,
        TensorLayout(
            "float16",
            (*layout.shape, 2),
            (*(stride * 2 for stride in layout.strides), 1),
            layout.begin,
            layout.size_bytes,
            layout.offset * 2,
            layout.is_big_endian,
        ),
    ).astype(np.float32)
    array = np.ascontiguousarray(parts).view(np.complex64)[..., 0]
    array = array.conj() if layout.is_conjugated else array
    return -array if layout.is_negated else array


def _check(layout: TensorLayout, item_bytes: int, file_bytes: int) -> None:
    sizes, strides = check_shape(layout.shape), check_shape(layout.strides)
    if len(sizes) != len(strides) or not all(map(is_size, (layout.offset, layout.begin))) or layout.size_bytes < 0:
        raise Unreadable("has a header that makes no sense")
    if layout.begin + layout.size_bytes > file_bytes:
        raise Unreadable("is cut off")
    count = math.prod(sizes)
    if count == 0:
        return
    last = layout.offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if (last + 1) * item_bytes > layout.size_bytes:
        raise Unreadable(f"is too short for its shape {list(sizes)}")
    if count * item_bytes > max(layout.size_bytes, MAX_REPEATED_BYTES):
        raise Unreadable(f"repeats {layout.size_bytes} bytes as {count} elements: too many to compare")
