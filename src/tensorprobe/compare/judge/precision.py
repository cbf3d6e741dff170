"""How coarse the dtypes are."""

from __future__ import annotations

from tensorprobe.model.dtype import short_dtype

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


def unit_roundoff(dtype: str | None) -> float | None:
    """Half the distance from 1 to the next number; None for what is exact (integers, booleans) or not known."""
    return _UNIT_ROUNDOFF.get(short_dtype(dtype))
