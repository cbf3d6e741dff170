"""In which precision a step is executed: float64 throughout, which gives what it means, or as recorded, which gives its
bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

import numpy as np
import torch

from tensorprobe.replay.argument import UnknownArgumentError

PrecisionName = Literal["float64", "recorded"]
_ALIASES = {
    "half": "float16",
    "double": "float64",
    "float": "float32",
    "int": "int32",
    "long": "int64",
    "bool_": "bool",
}
_WIDE = {False: torch.float64, True: torch.complex128}


@cache
def torch_dtype(name: str) -> torch.dtype:
    """`bfloat16`, without the framework's name; UnknownArgumentError for what torch does not have."""
    found = getattr(torch, _ALIASES.get(name, name), None)
    if not isinstance(found, torch.dtype):
        raise UnknownArgumentError(f"the dtype {name[:40]!r}")
    return found


def widen_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision of the truth."""
    return _WIDE[dtype.is_complex] if dtype.is_floating_point or dtype.is_complex else dtype


class Precision:
    """How dtypes that were recorded are read."""

    def __init__(self, name: PrecisionName) -> None:
        self.name = name
        self.is_wide = name == "float64"

    def dtype(self, recorded: torch.dtype) -> torch.dtype:
        return widen_dtype(recorded) if self.is_wide else recorded

    def convert(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.dtype(tensor.dtype))


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """What is made without a dtype has this one: `linspace(0, 1, 7)`, a whole number times 0.5."""
    before = torch.get_default_dtype()
    if dtype is before:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def tensor_from_array(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """A tensor with memory of its own. Numpy knows no bfloat16 and no float8: their bits are handed over."""
    if dtype.itemsize != array.dtype.itemsize:
        raise UnknownArgumentError(f"a file of {array.dtype} where {dtype} was recorded")
    own = np.array(array, order="K", subok=False, copy=True)
    if own.dtype.kind not in "biufc" or own.dtype.name.startswith(("bfloat", "float8")):
        bits = own.view({1: np.uint8, 2: np.int16, 4: np.int32}[dtype.itemsize])
        return torch.from_numpy(bits).view(dtype)
    if own.dtype.kind == "u" and dtype.itemsize > 1:
        own = own.view({2: np.int16, 4: np.int32, 8: np.int64}[dtype.itemsize])
        return torch.from_numpy(own).view(dtype)
    return torch.from_numpy(own)
