"""How coarse the dtypes are."""

from __future__ import annotations

from functools import cache

from tensorprobe.compare.measure.tensor_measure import MANTISSA_BITS
from tensorprobe.model.dtype import short_dtype


@cache
def unit_roundoff(dtype: str | None) -> float | None:
    """Half the distance from 1 to the next number; None for what is exact (integers, booleans) or not known."""
    bits = MANTISSA_BITS.get(short_dtype(dtype))
    return None if bits is None else 0.5 ** (bits + 1)
