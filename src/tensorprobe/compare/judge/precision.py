"""How coarse the dtypes are."""

from __future__ import annotations

from functools import cache

from tensorprobe.compare.measure.tensor_measure import MANTISSA_BITS
from tensorprobe.model.dtype import short_dtype


def coarser_dtype(first: str | None, second: str | None) -> str | None:
    """Of two dtypes that stand against each other, the one that rounds more; the first, where neither does."""
    return second if (unit_roundoff(second) or 0.0) > (unit_roundoff(first) or 0.0) else first


@cache
def unit_roundoff(dtype: str | None) -> float | None:
    """Half the distance from 1 to the next number; None for what is exact (integers, booleans) or not known."""
    bits = MANTISSA_BITS.get(short_dtype(dtype))
    return None if bits is None else 0.5 ** (bits + 1)
