"""Pairs of which not both tensors are there: their statistics, or their checksums.

What the four statistics say of the error is a lower bound of what the tensors would say, and is put into the same
fields: the largest, the smallest and the mean element cannot differ by more than the largest absolute error does, nor
the norms by more than the Euclidean distance, and a difference of the means is spread over all elements. Where both
sides have a sketch, that distance is estimated, and a permutation is seen.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tensorprobe.compare.measure.chunk import ChunkedPair
from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.compare.measure.metric import ScaledSum, add_product, largest_magnitude, relative
from tensorprobe.model.dtype import short_dtype
from tensorprobe.model.record import Number
from tensorprobe.store.sketch import estimate_distance, sketch_array
from tensorprobe.store.slot import TensorSlot

Array = np.ndarray[Any, Any]
_STATISTICS = ("max", "min", "mean", "norm")
_RESOLUTION = 2e-6
"""Of the norm: sketches of the same elements may differ by so much, because sums are rounded."""
_ROUNDED = ("float", "bfloat", "complex")
_ROUNDING = 3e-6
"""Two frameworks compute a cosine with other last digits: their statistics are so near."""


def has_statistics(slot: TensorSlot) -> bool:
    return not (slot.norm is None and slot.max is None and slot.min is None and slot.mean is None)


_NO_ERROR: dict[str, Any] = {
    "is_equal": True,
    **dict.fromkeys(("euclidean_distance", "max_abs_error", "mean_abs_error", "relative_l2", "relative_max"), 0.0),
    **dict.fromkeys(("nan_only_reference", "nan_only_candidate", "inf_only_reference", "inf_only_candidate"), 0),
}


_NOTHING_DIFFERS: list[Any] = [_NO_ERROR.get(field.name, field.default) for field in dataclasses.fields(Measurement)]
_COUNT_PLACE = [field.name for field in dataclasses.fields(Measurement)].index("element_count")
_BEFORE_COUNT, _AFTER_COUNT = _NOTHING_DIFFERS[1:_COUNT_PLACE], _NOTHING_DIFFERS[_COUNT_PLACE + 1 : -2]
"""By position: by name each would take several times as long, and there are many."""


def measure_statistics(reference: TensorSlot, candidate: TensorSlot) -> Measurement:
    """Of two records that both have statistics. Every error is the least that it can be, but for a distance that is
    estimated."""
    if _all_of(reference) == _all_of(candidate):
        return _no_difference(reference)  # most pairs, and NaN is never among them
    found = {name: (getattr(reference, name), getattr(candidate, name)) for name in _STATISTICS}
    known = {
        name: (_number(first), _number(second))
        for name, (first, second) in found.items()
        if None not in (first, second)
    }
    count = reference.element_count
    nan = _only(reference.nan_count, candidate.nan_count, reference.has_nan, candidate.has_nan)
    inf = _only(reference.inf_count, candidate.inf_count, reference.has_inf, candidate.has_inf)
    gaps = {name: _gap(*found[name]) for name in known}
    mean_gap = gaps.get("mean", 0.0)
    estimate = sketched_distance(reference, candidate)
    max_abs_error = max(gaps.get("max", 0.0), gaps.get("min", 0.0), mean_gap)
    distance = max(gaps.get("norm", 0.0), mean_gap * math.sqrt(_bounded(count)), estimate)
    if any(nan) or any(inf):
        max_abs_error = distance = mean_gap = math.inf
    norms = known.get("norm", (None, None))
    return Measurement(
        "statistics",
        is_equal=all(_is_same(*pair) for pair in found.values()) and not any(nan) and not any(inf) and not estimate,
        element_count=count,
        euclidean_distance=distance,
        max_abs_error=max_abs_error,
        mean_abs_error=mean_gap,
        relative_l2=relative(distance, _scale(known, "norm")),
        relative_max=relative(max_abs_error, _scale(known, "max", "min")),
        nan_only_reference=nan[0],
        nan_only_candidate=nan[1],
        inf_only_reference=inf[0],
        inf_only_candidate=inf[1],
        norm_reference=norms[0],
        norm_candidate=norms[1],
    )


def has_near_statistics(reference: TensorSlot, candidate: TensorSlot) -> bool:
    """Are extremes, mean, norm and counts the same, but for the rounding of each number? Whole numbers have none."""
    kinds = [short_dtype(slot.dtype).rstrip("0123456789").removeprefix("u") for slot in (reference, candidate)]
    is_rounded = all(kind in _ROUNDED for kind in kinds)
    counts = [(slot.nan_count or 0, slot.inf_count or 0) for slot in (reference, candidate)]
    if (
        counts[0] != counts[1]
        or (not is_rounded and kinds[0] != kinds[1])
        or ("complex" in kinds and len(set(kinds)) > 1)
    ):
        return False
    both = [tuple(getattr(slot, name) for name in _STATISTICS) for slot in (reference, candidate)]
    if None in both[0] or None in both[1]:
        return False
    first, second = (tuple(map(_number, one)) for one in both)
    if not is_rounded:
        return both[0][:2] == both[1][:2] and all(map(math.isclose, first, second))
    largest, norm = (max(abs(one) for one in values) for values in ((*first[:2], *second[:2]), (first[3], second[3])))
    if not math.isfinite(largest) or not math.isfinite(norm):
        return first[:2] == second[:2]
    is_near = all(abs(one - other) <= _ROUNDING * largest for one, other in zip(first[:3], second[:3], strict=True))
    return is_near and abs(first[3] - second[3]) <= _ROUNDING * norm


def _all_of(slot: TensorSlot) -> tuple[object, ...]:
    return slot.max, slot.min, slot.mean, slot.norm, slot.nan_count, slot.inf_count, slot.sketch


def sketched_distance(reference: TensorSlot, candidate: TensorSlot) -> float:
    """About the distance of two tensors, over the elements that are finite; 0 where a side has no sketch, and where
    rounding of the sketches explains it."""
    if reference.sketch is None or candidate.sketch is None:
        return 0.0
    estimate = estimate_distance(reference.sketch, candidate.sketch)
    norms = [abs(_number(slot.norm)) for slot in (reference, candidate) if slot.norm is not None]
    if len(norms) < 2 or not all(map(math.isfinite, norms)):
        return estimate
    return min(estimate, sum(norms)) if estimate > _RESOLUTION * max(norms) else 0.0


def sees_order(reference: TensorSlot, candidate: TensorSlot) -> bool:
    """Do statistics tell a tensor from a permutation of its elements?"""
    return reference.sketch is not None and candidate.sketch is not None


def _no_difference(slot: TensorSlot) -> Measurement:
    norm = None if slot.norm is None else _number(slot.norm)
    columns = (*_BEFORE_COUNT, slot.element_count, *_AFTER_COUNT, norm, norm)
    return Measurement("statistics", *columns)


def has_same_checksum_kind(reference: TensorSlot, candidate: TensorSlot) -> bool:
    """A CRC-32 says nothing of a hash, nor a checksum of float32 of one of bfloat16."""
    first, second = reference.checksum, candidate.checksum
    if first is None or second is None or len(first) != len(second):
        return False
    return short_dtype(reference.dtype) == short_dtype(candidate.dtype)


def measure_checksums(reference: TensorSlot, candidate: TensorSlot) -> Measurement:
    """Equality by checksum; how far apart they are by the statistics, where both have some."""
    if reference.checksum == candidate.checksum:
        return equal_measurement(
            "checksum", reference.element_count, None if reference.norm is None else _number(reference.norm)
        )
    if has_statistics(reference) and has_statistics(candidate):
        return dataclasses.replace(measure_statistics(reference, candidate), basis="checksum", is_equal=False)
    return Measurement("checksum", is_equal=False, element_count=reference.element_count)


def equal_measurement(basis: Any, count: int | None, norm: float | None) -> Measurement:
    """Of two values that are known to be the same."""
    return Measurement(
        basis,
        element_count=count,
        cosine=1.0,
        max_relative_error=0.0,
        within_1e_3=1.0,
        within_5e_3=1.0,
        allclose=True,
        allclose_share=1.0,
        norm_reference=norm,
        norm_candidate=norm,
        **_NO_ERROR,
    )


def with_statistics_of(slot: TensorSlot, array: Array) -> TensorSlot:
    """The record of a tensor with the statistics of its file in the place of its own: over the elements that are not
    NaN, of complex numbers the modulus, as capture computes them."""
    squares, total = ScaledSum(), 0.0
    largest, smallest = -math.inf, math.inf
    nan_count = inf_count = 0
    with np.errstate(all="ignore"):
        for _, piece, _ in ChunkedPair(array, array):
            if piece.dtype.kind in "iu":
                largest, smallest = max(largest, int(piece.max())), min(smallest, int(piece.min()))
            values = np.abs(piece).astype(np.float64) if piece.dtype.kind == "c" else piece.astype(np.float64)
            values = values[~np.isnan(values)]
            nan_count += len(piece) - len(values)
            if not len(values):
                continue
            inf_count += int(np.count_nonzero(np.isinf(values)))
            if piece.dtype.kind not in "iu":
                largest, smallest = max(largest, float(values.max())), min(smallest, float(values.min()))
            magnitude = largest_magnitude(values)
            add_product(squares, values, values, magnitude, magnitude)
            total += float(values.sum())
    count = array.size - nan_count
    is_known = count > 0
    return dataclasses.replace(
        slot,
        max=largest if is_known else _without_elements(array),
        min=smallest if is_known else _without_elements(array),
        mean=total / count if is_known else _without_elements(array),
        norm=squares.root if is_known else _without_elements(array),
        nan_count=nan_count,
        inf_count=inf_count,
        sketch=None if (sketch := sketch_array(array)) is None else tuple(sketch),
    )


def _without_elements(array: Array) -> float | None:
    """All NaN, or empty."""
    return math.nan if array.size else None


def _number(value: bool | int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _gap(first: int | float, second: int | float) -> float:
    """How far apart two statistics are, of integers exactly: beyond 2**53 they are the same float. One that NaN has
    spoilt says nothing; the counts of NaN say it."""
    if first == second or first != first or second != second:
        return 0.0
    if isinstance(first, int) and isinstance(second, int):
        return abs(_number(first - second))
    return abs(_number(first) - _number(second))


def _is_same(first: Number, second: Number) -> bool:
    return first == second or (first != first and second != second)


def _only(reference: int | None, candidate: int | None, has_reference: bool, has_candidate: bool) -> tuple[int, int]:
    """How many elements are NaN, or Inf, on one side only: at least. Where a dump has no counts, one is known of."""
    first = reference if reference is not None else int(has_reference)
    second = candidate if candidate is not None else int(has_candidate)
    if first and second and (reference is None or candidate is None):
        return 0, 0
    return max(0, first - second), max(0, second - first)


def _scale(known: dict[str, tuple[Any, Any]], *names: str) -> float:
    sizes = [abs(value) for name in names for value in known.get(name, ())]
    return max((size for size in sizes if math.isfinite(size)), default=0.0)


def _bounded(count: int | None) -> float:
    return float(min(max(count or 1, 1), 1 << 62))
