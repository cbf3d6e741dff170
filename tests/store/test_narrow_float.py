"""Floats that numpy does not have, held against ml_dtypes: every pattern of bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tensorprobe.store.narrow_float import item_bytes, widen_bits


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_every_pattern_of_bits_is_its_number(kind: str) -> None:
    size = item_bytes(kind)
    bits = np.arange(1 << (8 * (size or 0)), dtype=f"u{size}")
    expected = bits.view(getattr(ml_dtypes, kind)).astype(np.float32)
    got = widen_bits(bits, kind)
    assert got.dtype == np.float32 and np.array_equal(got, expected, equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(expected))


def test_other_dtypes_are_not_widened() -> None:
    assert item_bytes("float32") is None
