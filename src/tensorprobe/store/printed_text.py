"""A tensor as MindSpore prints it: `Tensor(shape=[2, 2], dtype=Float32, value=\n[[1 2]\n [3 4]])`."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from tensorprobe.foreign_text import shorten
from tensorprobe.model.dtype import short_dtype
from tensorprobe.store import narrow_float
from tensorprobe.store.tensor_layout import MAX_DIMENSIONS, Unreadable, is_numpy_dtype, quote

Array = np.ndarray[Any, Any]

TENSOR_SIGN = "Tensor(shape="
"""How such a text begins."""
_TENSOR = re.compile(r"Tensor\(shape=\[([^\]]*)\],\s*dtype=(\w+),\s*value=(.*)\)\s*", re.DOTALL)
_BETWEEN = re.compile(r"[\s,\[\]]+")
_MAX_REASON_CHARACTERS = 100
_BOOLS = {"True": True, "true": True, "1": True, "False": False, "false": False, "0": False}


def is_tensor(text: str) -> bool:
    return text.startswith(TENSOR_SIGN)


def parse_tensor(text: str) -> Array:
    """The array that a text stands for."""
    found = _TENSOR.fullmatch(text.strip())
    if found is None:
        raise Unreadable("holds the text of a tensor that is cut off")
    shape, tensor_type, values = found.groups()
    sizes = [size for size in _BETWEEN.split(shape) if size]
    if len(sizes) > MAX_DIMENSIONS or not all(size.isdecimal() and len(size) < 20 for size in sizes):
        raise Unreadable(f"holds the text of a tensor with the shape [{shape[:100]}]")
    dims = tuple(map(int, sizes))
    words = [word for word in _BETWEEN.split(values) if word]
    if "..." in words:
        raise Unreadable("holds the text of a tensor with only a part of its values: MindSpore has shortened it")
    if math.prod(dims) != len(words):
        raise Unreadable(f"holds the text of a tensor with {len(words)} values and the shape {list(dims)}")
    try:
        return _make_array(words, short_dtype(tensor_type), tensor_type).reshape(dims)
    except (ValueError, KeyError, OverflowError) as error:
        reason = shorten(str(error), _MAX_REASON_CHARACTERS)
        raise Unreadable(f"holds the text of a tensor that is no {tensor_type} ({reason})") from None


def _make_array(words: list[str], dtype: str, tensor_type: str) -> Array:
    if narrow_float.item_bytes(dtype) is not None:
        dtype = "float32"
    if not is_numpy_dtype(dtype):
        raise Unreadable(f"holds a tensor of the type {quote(tensor_type)}, which is not converted")
    if dtype == "bool":
        return np.array([_BOOLS[word] for word in words], bool)
    if np.dtype(dtype).kind in "iu":
        return _make_integers(words, dtype)
    convert = complex if dtype.startswith("complex") else float
    with np.errstate(over="ignore"):
        return np.array([convert(word) for word in words], dtype)


def _make_integers(words: list[str], dtype: str) -> Array:
    limits, numbers = np.iinfo(dtype), [int(word) for word in words]
    outside = next((number for number in numbers if not limits.min <= number <= limits.max), None)
    if outside is not None:
        raise ValueError(f"{outside} is none")
    return np.array(numbers, dtype)
