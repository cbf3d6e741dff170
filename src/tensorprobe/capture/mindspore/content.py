"""The content of a tensor on the host, as numpy sees it. Reads only; waits until the tensor has been computed."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Tensor, dtype

from tensorprobe.capture.failure import ProgramError

Array = np.ndarray[Any, Any]

_BITS = {2: np.dtype("V2"), 1: np.dtype("V1")}
_OPAQUE_NAMES = ("float8_e4m3fn", "float8_e5m2", "hifloat8", "int4", "qint4x2")
_OPAQUE = frozenset(getattr(dtype, name) for name in _OPAQUE_NAMES if hasattr(dtype, name))
"""dtypes that asnumpy gives without their numbers."""


def wait_for(tensor: Tensor) -> None:
    """Return when a tensor has been computed. What went wrong in that is the program's, and MindSpore says it but
    once."""
    try:
        tensor.wait_pipeline()
    except Exception as error:
        raise ProgramError(error) from error


def array_of(tensor: Tensor) -> Array:
    """Its memory as an array, not a copy. bfloat16, which numpy does not know, comes as two bytes an element."""
    array: Array = tensor.asnumpy()
    if array.dtype.kind == "V" or array.dtype.isbuiltin != 1:
        array = array.view(_BITS[array.dtype.itemsize])
    return array


def missing_content(tensor: Tensor) -> str | None:
    """Why a tensor has no numbers to look at; None if it has."""
    if getattr(tensor, "has_init", False):
        return "not yet initialised"
    if getattr(tensor, "is_meta", False):
        return "meta tensor"
    kind = tensor.dtype
    if kind in _OPAQUE:
        return f"{kind} has no numbers on this host"
    return None


def numbers_of(tensor: Tensor, array: Array) -> Array:
    """What `array_of` gave, as numbers: bfloat16 is widened to float32, which loses nothing."""
    if array.dtype.kind != "V" or tensor.dtype != dtype.bfloat16:
        return array
    return widen_bfloat16(array)


def widen_bfloat16(bits: Array) -> Array:
    """The upper half of a float32 is a bfloat16."""
    wide: Array = np.ascontiguousarray(bits).view(np.uint16).astype(np.uint32)
    return (wide << 16).view(np.float32)
