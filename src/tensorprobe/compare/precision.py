"""How coarse the dtypes are."""

from __future__ import annotations

from functools import cache

_UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "complex128": 2.0**-53,
    "float32": 2.0**-24,
    "complex64": 2.0**-24,
    "float16": 2.0**-11,
    "complex32": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e4m3fnuz": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "float8_e5m2fnuz": 2.0**-3,
    "float8_e8m0fnu": 2.0**-1,
}


@cache
def short_dtype(dtype: str | None) -> str:
    """`float32`, from torch's, numpy's or MindSpore's spelling.

    >>> short_dtype("torch.float32"), short_dtype("Float32"), short_dtype("<class 'numpy.float32'>")
    ('float32', 'float32', 'float32')
    """
    if dtype is None:
        return ""
    return dtype.rpartition(".")[2].strip("'>").lower()


def unit_roundoff(dtype: str | None) -> float | None:
    """Half the distance from 1 to the next number; None for what is exact (integers, booleans) or not known."""
    return _UNIT_ROUNDOFF.get(short_dtype(dtype))
