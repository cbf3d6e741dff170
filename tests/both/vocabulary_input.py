"""Small arrays of all kinds: what both frameworks are given when they are asked for the same operation."""

from __future__ import annotations

import numpy as np

_RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return _RNG.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return (_RNG.random(shape) * 0.8 + 0.1).astype(np.float32)


def integers(high: int, *shape: int, low: int = 0) -> np.ndarray:
    return _RNG.integers(low, high, shape).astype(np.int64)


def booleans(*shape: int) -> np.ndarray:
    return _RNG.random(shape) > 0.5


def definite(size: int) -> np.ndarray:
    half = _RNG.standard_normal((size, size))
    return (half @ half.T + size * np.eye(size)).astype(np.float32)


def complex_numbers(*shape: int) -> np.ndarray:
    return (normal(*shape) + 1j * normal(*shape)).astype(np.complex64)


X = normal(3, 4)
Y = normal(3, 4)
UNIT = positive(3, 4)
WHOLE = integers(9, 3, 4, low=1)
IMAGE = normal(2, 3, 8, 8)
SERIES = normal(2, 3, 8)
VOLUME = normal(2, 3, 6, 6, 6)
LABELS = integers(4, 3)
SIGNS = np.sign(normal(3, 4)).astype(np.float32)
MASK = booleans(3, 4)
WAVES = complex_numbers(3, 4)
