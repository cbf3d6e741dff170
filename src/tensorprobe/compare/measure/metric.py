"""The metrics of two arrays, each a small pure function of arrays or of the sums over them. numpy only.

Sums of squares are kept with an exponent of their own, because the square of 1e-200 is no float64, nor is that of
1e200: such values are scaled before they are squared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_SMALLEST, _LARGEST = 2.0**-450, 2.0**450
"""Between these, squares and sums of squares of any number of elements are good float64s."""


@dataclass(slots=True)
class ScaledSum:
    """A sum that is `value * 2**exponent`."""

    value: float = 0.0
    exponent: int = 0

    def add(self, value: float, exponent: int = 0) -> None:
        if exponent == self.exponent:
            self.value += value
        elif value != 0.0 and (self.value == 0.0 or exponent > self.exponent):
            self.value = value + _shift(self.value, self.exponent - exponent)
            self.exponent = exponent
        elif value != 0.0:
            self.value += _shift(value, exponent - self.exponent)

    @property
    def root(self) -> float:
        """Its square root; the exponents of squares are even."""
        return _shift(math.sqrt(self.value), self.exponent // 2)


def add_product(total: ScaledSum, first: Array, second: Array, largest_first: float, largest_second: float) -> None:
    """Add the sum of products of two arrays, whose largest magnitudes are known."""
    if largest_first == 0.0 or largest_second == 0.0:
        return
    if _SMALLEST < largest_first < _LARGEST and _SMALLEST < largest_second < _LARGEST:
        total.add(sum_of_products(first, second))
        return
    if math.isinf(largest_first) or math.isinf(largest_second):
        total.add(math.inf)
        return
    # Each by an even number of bits in all, so that the root of a sum of squares is a whole number of bits.
    bits = math.frexp(largest_first)[1], math.frexp(largest_second)[1]
    product = sum_of_products(np.ldexp(first, -bits[0]), np.ldexp(second, -bits[1]))
    total.add(product, sum(bits))


def sum_of_products(first: Array, second: Array) -> float:
    """Not np.dot, which starts threads that fight over the cores with the other processes, and whose rounding depends
    on how many there are."""
    return float(np.einsum("i,i->", first, second))


def cosine(product: ScaledSum, squares_reference: ScaledSum, squares_candidate: ScaledSum) -> float:
    """Of two all-zero arrays 1, of one 0."""
    if squares_reference.value == 0.0 or squares_candidate.value == 0.0:
        return 1.0 if squares_reference.value == squares_candidate.value else 0.0
    bits = product.exponent - (squares_reference.exponent + squares_candidate.exponent) // 2
    denominator = math.sqrt(squares_reference.value) * math.sqrt(squares_candidate.value)
    return min(1.0, max(-1.0, _shift(product.value / denominator, bits)))


def relative(error: float, scale: float) -> float:
    """An error in units of a scale: 0 without an error, infinite where there is one and nothing to hold it against."""
    if error == 0.0:
        return 0.0
    if scale == 0.0 or math.isinf(error):
        return math.inf
    return error / scale


def largest_magnitude(values: Array) -> float:
    """NaN if one of them is NaN; complex numbers by their modulus."""
    if values.dtype.kind == "c":
        return float(np.abs(values).max())
    return max(float(values.max()), -float(values.min()))


def exact_distance(reference: Array, candidate: Array) -> Array:
    """|reference - candidate| of 64-bit integers without rounding, as uint64, or as Python's integers where it is
    wider than that: float64 knows integers only up to 2**53."""
    if reference.dtype != candidate.dtype and np.uint64 in (reference.dtype, candidate.dtype):
        distance: Array = np.abs(reference.astype(object) - candidate.astype(object))
        return distance
    larger, smaller = np.maximum(reference, candidate), np.minimum(reference, candidate)
    return larger.astype(np.uint64) - smaller.astype(np.uint64)


def ulp_distance(reference: Array, candidate: Array, has_sign: bool = True, has_same_signs: bool = False) -> int:
    """The largest distance of two arrays of the same float dtype, counted in numbers of that dtype. Both are finite and
    not empty; +0 and -0 are the same number. That no sign differs saves the work of looking."""
    kind = "i" if has_sign else "u"
    first, second = (side.view(f"{kind}{side.dtype.itemsize}") for side in (reference, candidate))
    if has_same_signs or (has_sign and (first ^ second).min() >= 0):
        steps = first - second
        return max(int(steps.max()), -int(steps.min()))
    if has_sign:
        first, second = _count_from_zero(first), _count_from_zero(second)
    larger = np.maximum(first, second)
    # The difference of two signed integers always fits into the unsigned one, wrapped or not.
    larger -= np.minimum(first, second)
    return int(larger.view(f"u{larger.dtype.itemsize}").max())


def _count_from_zero(bits: Array) -> Array:
    """From a sign and a magnitude to the number of steps from zero, below it and above it."""
    sign = bits >> (bits.dtype.itemsize * 8 - 1)
    steps = bits & np.iinfo(bits.dtype).max
    steps ^= sign
    steps -= sign
    return steps


def _shift(value: float, bits: int) -> float:
    try:
        return math.ldexp(value, bits)
    except OverflowError:
        return math.copysign(math.inf, value)
