"""Two arrays, measured in one pass over pieces that stay in the cache. All sums are float64.

Most pairs are equal, so the bytes of a piece are compared first; of equal pieces only the norm is left to compute.
Elements that are NaN on both sides, or the same infinity, agree; those that are so on one side only are worse than any
number: the distances are infinite then, and there is no cosine. Norms are those of the finite elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tensorprobe.compare.measure.chunk import ChunkedPair
from tensorprobe.compare.measure.measurement import Measurement, other_shape
from tensorprobe.compare.measure.metric import (
    ScaledSum,
    add_product,
    cosine,
    exact_distance,
    largest_magnitude,
    relative,
    ulp_distance,
)

Array = np.ndarray[Any, Any]

MANTISSA_BITS = {
    "float64": 52,
    "complex128": 52,
    "float32": 23,
    "complex64": 23,
    "float16": 10,
    "complex32": 10,
    "bfloat16": 7,
    "float8_e4m3fn": 3,
    "float8_e4m3fnuz": 3,
    "float8_e5m2": 2,
    "float8_e5m2fnuz": 2,
    "float8_e8m0fnu": 0,
}
_WITHOUT_SIGN = "float8_e8m0fnu"
_EXACT_INTEGERS = 2.0**53
"""Below this every integer is a float64."""


def measure_arrays(reference: Array, candidate: Array, rtol: float, atol: float) -> Measurement:
    """All numbers of a pair; of other shapes, none."""
    if reference.shape != candidate.shape:
        return other_shape("tensor", reference.shape, candidate.shape)
    for dtype in (reference.dtype, candidate.dtype):
        if dtype.kind not in "biufc" and dtype.name not in MANTISSA_BITS:
            return Measurement("tensor", problem=f"elements of the type {dtype} are not compared")
    pair = ChunkedPair(reference, candidate)
    total = ErrorTotal(_kind_of_pair(reference.dtype, candidate.dtype), pair.largest_piece, rtol, atol)
    with np.errstate(all="ignore"):
        for position, first, second in pair:
            total.add(position, first, second)
    return total.result(pair)


@dataclass(frozen=True, slots=True)
class PairKind:
    """What the dtypes of a pair say about how it is measured."""

    has_same_dtype: bool
    is_complex: bool
    is_wide_integer: bool
    """Integers that float64 may round."""
    ulp_dtype: np.dtype[Any] | None
    """Whose steps are counted: the less precise; None unless both are floats."""
    has_sign: bool


@lru_cache
def _kind_of_pair(reference: np.dtype[Any], candidate: np.dtype[Any]) -> PairKind:
    are_integers = all(dtype.kind in "iu" for dtype in (reference, candidate))
    ulp_dtype = _less_precise(reference, candidate)
    return PairKind(
        has_same_dtype=reference.name == candidate.name,
        is_complex="c" in (reference.kind, candidate.kind),
        is_wide_integer=are_integers and 8 in (reference.itemsize, candidate.itemsize),
        ulp_dtype=ulp_dtype,
        has_sign=ulp_dtype is None or ulp_dtype.name != _WITHOUT_SIGN,
    )


class ErrorTotal:
    """What is known of a pair after the pieces that were added. Buffers are made once, for all pieces."""

    def __init__(self, kind: PairKind, largest_piece: int, rtol: float, atol: float) -> None:
        self._kind = kind
        self._rtol, self._atol = rtol, atol
        working = np.complex128 if kind.is_complex else np.float64
        self._reference = np.empty(largest_piece, working)
        self._candidate = np.empty(largest_piece, working)
        self._distance = np.empty(largest_piece)

        self.count = 0
        self.is_equal = kind.has_same_dtype
        self.squares_reference, self.squares_candidate = ScaledSum(), ScaledSum()
        self.product, self.squares_distance = ScaledSum(), ScaledSum()
        self.sum_distance = 0.0
        self.largest = 0.0
        self.max_relative_error = 0.0
        self.max_ulp = 0
        self.beyond_1e_3 = self.beyond_5e_3 = self.beyond_tolerance = 0
        self.nan_only_reference = self.nan_only_candidate = 0
        self.inf_only_reference = self.inf_only_candidate = 0
        self.nan_both = 0
        self.max_abs_error = 0.0
        self.worst_position = -1
        self.worst_values: tuple[Any, Any] = (None, None)

    def add(self, position: int, reference: Array, candidate: Array) -> None:
        self.count += len(reference)
        reference, candidate = _in_native_order(reference), _in_native_order(candidate)
        if self._kind.has_same_dtype and _has_same_bytes(reference, candidate):
            self._add_equal(reference)
        else:
            self.is_equal = False
            self._add_different(position, reference, candidate)

    def _add_equal(self, raw: Array) -> None:
        values = self._load(self._reference, raw)
        largest = largest_magnitude(_narrower(raw, values))
        if not math.isfinite(largest):
            self.nan_both += int(np.count_nonzero(np.isnan(values)))
            values[~np.isfinite(values)] = 0
            largest = largest_magnitude(values)
        self.largest = max(self.largest, largest)
        parts = values.view(np.float64)
        squares = ScaledSum()
        add_product(squares, parts, parts, largest, largest)
        for total in (self.squares_reference, self.squares_candidate, self.product):
            total.add(squares.value, squares.exponent)

    def _add_different(self, position: int, raw_reference: Array, raw_candidate: Array) -> None:
        reference = self._load(self._reference, raw_reference)
        candidate = self._load(self._candidate, raw_candidate)
        distance = self._subtract(reference, candidate)
        largest_reference = largest_magnitude(_narrower(raw_reference, reference))
        largest_candidate = largest_magnitude(_narrower(raw_candidate, candidate))
        finite = None
        if not math.isfinite(largest_reference + largest_candidate):
            finite = self._set_apart_nonfinite(reference, candidate, distance)
            largest_reference, largest_candidate = largest_magnitude(reference), largest_magnitude(candidate)
        elif self._kind.is_wide_integer and max(largest_reference, largest_candidate) >= _EXACT_INTEGERS:
            distance[:] = exact_distance(raw_reference, raw_candidate)
        largest_distance = float(distance.max())
        self.largest = max(self.largest, largest_reference, largest_candidate)
        if largest_distance > self.max_abs_error:
            self._note_worst(position, distance, raw_reference, raw_candidate)
        parts = reference.view(np.float64), candidate.view(np.float64)
        add_product(self.squares_reference, parts[0], parts[0], largest_reference, largest_reference)
        add_product(self.squares_candidate, parts[1], parts[1], largest_candidate, largest_candidate)
        add_product(self.product, parts[0], parts[1], largest_reference, largest_candidate)
        add_product(self.squares_distance, distance, distance, largest_distance, largest_distance)
        self.sum_distance += float(distance.sum())
        # What was in these buffers is no longer needed.
        magnitude = np.abs(reference, out=self._reference.view(np.float64)[: len(reference)])
        largest_ratio = self._add_ratios(distance, magnitude, largest_distance)
        if self._kind.ulp_dtype is not None:
            self._add_ulp(raw_reference, raw_candidate, finite, has_same_signs=largest_ratio < 1.0)

    def _load(self, buffer: Array, raw: Array) -> Array:
        values = buffer[: len(raw)]
        np.copyto(values, raw, casting="unsafe")
        return values

    def _subtract(self, reference: Array, candidate: Array) -> Array:
        distance = self._distance[: len(reference)]
        if self._kind.is_complex:
            np.abs(reference - candidate, out=distance)
        else:
            np.subtract(reference, candidate, out=distance)
            np.abs(distance, out=distance)
        return distance

    def _set_apart_nonfinite(self, reference: Array, candidate: Array, distance: Array) -> Array:
        """Count NaN and Inf, let the distance say whether they agree, and put zeros in their place. Where both sides
        are finite is returned."""
        nan = np.isnan(reference), np.isnan(candidate)
        inf = np.isinf(reference) & ~nan[0], np.isinf(candidate) & ~nan[1]
        finite = ~(nan[0] | inf[0]), ~(nan[1] | inf[1])
        same_inf = inf[0] & inf[1] & (reference == candidate)
        self.nan_only_reference += int(np.count_nonzero(nan[0] & ~nan[1]))
        self.nan_only_candidate += int(np.count_nonzero(nan[1] & ~nan[0]))
        self.nan_both += int(np.count_nonzero(nan[0] & nan[1]))
        self.inf_only_reference += int(np.count_nonzero(inf[0] & ~same_inf))
        self.inf_only_candidate += int(np.count_nonzero(inf[1] & ~same_inf))
        both_finite: Array = finite[0] & finite[1]
        agree = same_inf | (nan[0] & nan[1])
        distance[~both_finite] = np.inf
        distance[agree] = 0.0
        reference[~finite[0]] = 0
        candidate[~finite[1]] = 0
        return both_finite

    def _note_worst(self, position: int, distance: Array, reference: Array, candidate: Array) -> None:
        at = int(distance.argmax())
        self.max_abs_error = float(distance[at])
        self.worst_position = position + at
        self.worst_values = (_plain(reference[at]), _plain(candidate[at]))

    def _add_ratios(self, distance: Array, magnitude: Array, largest_distance: float) -> float:
        """The largest ratio, or NaN. Where both are 0 the ratio is NaN: such elements are within any bound."""
        ratio = np.divide(distance, magnitude, out=self._candidate.view(np.float64)[: len(distance)])
        found = float(ratio.max())
        largest = float(np.fmax.reduce(ratio)) if math.isnan(found) else found
        if largest > self.max_relative_error:
            self.max_relative_error = largest
        if largest >= 1e-3:
            self.beyond_1e_3 += int(np.count_nonzero(ratio >= 1e-3))
        if largest >= 5e-3:
            self.beyond_5e_3 += int(np.count_nonzero(ratio >= 5e-3))
        if largest > self._rtol and largest_distance > self._atol:
            np.multiply(magnitude, self._rtol, out=ratio)
            np.add(ratio, self._atol, out=ratio)
            self.beyond_tolerance += int(np.count_nonzero(distance > ratio))
        return found

    def _add_ulp(self, reference: Array, candidate: Array, finite: Array | None, has_same_signs: bool) -> None:
        dtype = self._kind.ulp_dtype
        assert dtype is not None
        if finite is not None:
            reference, candidate = reference[finite], candidate[finite]
        if not len(reference):
            return
        # Of complex numbers the parts may differ in sign where the whole hardly does; and another dtype may round to 0.
        has_same_signs = has_same_signs and dtype.kind != "c" and self._kind.has_same_dtype and self._kind.has_sign
        first, second = reference.astype(dtype, copy=False), candidate.astype(dtype, copy=False)
        if dtype.kind == "c":
            part = np.dtype(f"f{dtype.itemsize // 2}")
            first, second = first.view(part), second.view(part)
        self.max_ulp = max(self.max_ulp, ulp_distance(first, second, self._kind.has_sign, has_same_signs))

    def result(self, pair: ChunkedPair) -> Measurement:
        count = max(self.count, 1)
        norm_reference, norm_candidate = self.squares_reference.root, self.squares_candidate.root
        distance = self.squares_distance.root
        return Measurement(
            "tensor",
            is_equal=self.is_equal,
            element_count=self.count,
            cosine=self._cosine(),
            euclidean_distance=distance,
            max_abs_error=self.max_abs_error,
            mean_abs_error=self.sum_distance / count,
            max_relative_error=self.max_relative_error,
            relative_l2=relative(distance, max(norm_reference, norm_candidate)),
            relative_max=relative(self.max_abs_error, self.largest),
            within_1e_3=1.0 - self.beyond_1e_3 / count,
            within_5e_3=1.0 - self.beyond_5e_3 / count,
            allclose=self.beyond_tolerance == 0,
            allclose_share=1.0 - self.beyond_tolerance / count,
            max_ulp=None if self._kind.ulp_dtype is None else self.max_ulp,
            nan_only_reference=self.nan_only_reference,
            nan_only_candidate=self.nan_only_candidate,
            inf_only_reference=self.inf_only_reference,
            inf_only_candidate=self.inf_only_candidate,
            nan_both=self.nan_both,
            worst_index=None if self.worst_position < 0 else pair.index(self.worst_position),
            worst_reference=self.worst_values[0],
            worst_candidate=self.worst_values[1],
            norm_reference=norm_reference,
            norm_candidate=norm_candidate,
        )

    def _cosine(self) -> float | None:
        if self.nan_only_reference or self.nan_only_candidate or self.inf_only_reference or self.inf_only_candidate:
            return None
        if self.max_abs_error == 0.0:
            return 1.0
        return cosine(self.product, self.squares_reference, self.squares_candidate)


def _has_same_bytes(reference: Array, candidate: Array) -> bool:
    first, second = reference.view(np.uint8), candidate.view(np.uint8)
    if len(first) % 8 == 0:
        first, second = first.view(np.uint64), second.view(np.uint64)
    return bool((first == second).all())


def _narrower(raw: Array, values: Array) -> Array:
    """Which of the two has its extremes found sooner: half the bytes, where the processor knows the dtype."""
    return raw if raw.dtype == np.float32 else values


def _in_native_order(raw: Array) -> Array:
    return raw if raw.dtype.isnative else raw.astype(raw.dtype.newbyteorder("="))


def _less_precise(reference: np.dtype[Any], candidate: np.dtype[Any]) -> np.dtype[Any] | None:
    """The dtype whose steps are counted; None unless both are floats."""
    names = reference.name, candidate.name
    if not all(name in MANTISSA_BITS for name in names):
        return None
    found = min((reference, candidate), key=lambda dtype: MANTISSA_BITS[dtype.name])
    is_complex = "c" in (reference.kind, candidate.kind)
    if is_complex and found.kind != "c":
        found = np.dtype(np.complex128 if found.itemsize == 8 else np.complex64)
    return found.newbyteorder("=") if found.kind != "V" else found


def _plain(value: Any) -> Any:
    item = value.item()
    return item if isinstance(item, (bool, int, float, complex)) else float(item)
