"""Floating-point numbers that numpy has no dtype for, widened to float32: each of them is a float32 too, so nothing is
lost. Needs no ml_dtypes, because programs are recorded where it is not installed."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_ITEM_BYTES = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}


def item_bytes(kind: str) -> int | None:
    """How many bytes a number takes; None for what is not widened here."""
    return _ITEM_BYTES.get(kind)


def widen_bits(bits: Array, kind: str) -> Array:
    """The numbers whose bits are given, as float32.

    >>> widen_bits(np.array([0x3FC0, 0xC000], np.uint16), "bfloat16").tolist()
    [1.5, -2.0]
    """
    if kind == "bfloat16":
        wide: Array = np.ascontiguousarray(bits).view(np.uint16).astype(np.uint32)
        wide <<= np.uint32(16)
        return wide.view(np.float32)
    return np.asarray(_float8_table(kind)[np.ascontiguousarray(bits).view(np.uint8)])


@cache
def _float8_table(kind: str) -> Array:
    """The number of each of the 256 patterns of bits."""
    mantissa_bits = 3 if kind == "float8_e4m3fn" else 2
    exponent_bits = 7 - mantissa_bits
    bias = (1 << (exponent_bits - 1)) - 1
    patterns = np.arange(256)
    exponent = (patterns & 0x7F) >> mantissa_bits
    fraction = (patterns & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    numbers = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))
    if kind == "float8_e4m3fn":  # no infinity: the one pattern that is left means NaN
        numbers[(patterns & 0x7F) == 0x7F] = np.nan
    else:
        is_last = exponent == (1 << exponent_bits) - 1
        numbers[is_last & (fraction == 0)] = np.inf
        numbers[is_last & (fraction != 0)] = np.nan
    return np.where(patterns & 0x80, -numbers, numbers).astype(np.float32)
