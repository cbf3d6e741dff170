"""A pair of tensors as a person looks at it: histograms, the slice around the worst element, and all metrics.

The metrics are those of all elements, measured in pieces. What is drawn is bounded: histograms are made of about
`_DRAWN_ELEMENTS` elements, evenly spread, and a heat map of a window of as many around the worst one, so that a tensor
of any size takes the same memory. Numbers are rounded to what a picture can show.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.compare.measure.shape import is_laid_out_alike
from tensorprobe.compare.measure.tensor_measure import measure_arrays
from tensorprobe.compare.option import DEFAULT_ATOL, DEFAULT_RTOL
from tensorprobe.report.json import make_strict
from tensorprobe.report.page.heat import draw_heat

Array = np.ndarray[Any, Any]

_DRAWN_ELEMENTS = 1 << 21
_BINS = 64
_NARROW = 1e-12
"""Bins of a range that is narrower, relative to its numbers, could not be told apart."""
_NOT_A_METRIC = ("basis", "problem", "is_other_shape", "fallback")


def describe_pair(reference: Array, candidate: Array) -> dict[str, Any]:
    """Histograms of both sides and of their differences, a heat map of the worst slice, and the metrics. Of shapes that
    cannot be laid on each other: the histograms of both sides, and the reason."""
    shapes = reference.shape, candidate.shape
    if shapes[0] != shapes[1] and is_laid_out_alike(*shapes):
        candidate = candidate.reshape(shapes[0])
    measurement = measure_arrays(reference, candidate, DEFAULT_RTOL, DEFAULT_ATOL)
    has_numbers = _is_numeric(reference) and _is_numeric(candidate)
    are_alike = reference.shape == candidate.shape and has_numbers
    with np.errstate(all="ignore"):
        histogram = _draw_histograms([reference, candidate] if has_numbers else [], are_alike)
        heat = draw_heat([reference, candidate], measurement.worst_index) if are_alike else None
    metrics = _describe_metrics(measurement)
    if shapes[0] != reference.shape or shapes[1] != candidate.shape:
        metrics["shape"] = f"{list(shapes[0])} against {list(shapes[1])}, compared in the order of the elements"
    found: dict[str, Any] = make_strict({"histogram": histogram, "heat": heat, "metrics": metrics})
    return found


def describe_array(array: Array) -> dict[str, Any]:
    """The same of one tensor alone: what belongs to a candidate and to a difference is empty."""
    is_numeric = _is_numeric(array)
    with np.errstate(all="ignore"):
        histogram = _draw_histograms([array] if is_numeric else [], False)
        heat = draw_heat([array], None) if is_numeric else None
    metrics = {} if is_numeric else {"problem": f"elements of the type {array.dtype} are not drawn"}
    found: dict[str, Any] = make_strict({"histogram": histogram, "heat": heat, "metrics": metrics})
    return found


def _is_numeric(array: Array) -> bool:
    """ml_dtypes' numbers are of the kind V for numpy, as are records, which are no numbers."""
    return array.dtype.kind in "biufc" or (array.dtype.kind == "V" and array.dtype.type is not np.void)


def _describe_metrics(measurement: Measurement) -> dict[str, Any]:
    if measurement.problem is not None:
        return {"problem": measurement.problem}
    found = {field.name: getattr(measurement, field.name) for field in dataclasses.fields(measurement)}
    return {name: value for name, value in found.items() if value is not None and name not in _NOT_A_METRIC}


def _draw_histograms(arrays: list[Array], are_alike: bool) -> dict[str, Any]:
    """Of one or two arrays on common edges; the differences have edges of their own."""
    samples = [_sample(array) for array in arrays]
    is_complex = any(sample.dtype.kind == "c" for sample in samples)
    differences = [_magnitude(samples[1] - samples[0])] if are_alike else []
    values = [_magnitude(sample) for sample in samples]
    edges, counts = _count(values)
    difference_edges, difference_counts = _count(differences)
    drawn = {
        "edges": edges,
        "reference": counts[0] if counts else [],
        "candidate": counts[1] if len(counts) > 1 else [],
        "difference_edges": difference_edges,
        "difference": difference_counts[0] if difference_counts else [],
        "not_finite": [int(np.count_nonzero(~np.isfinite(one))) for one in values],
    }
    if is_complex:
        drawn["of"] = "magnitude"
    if any(sample.size < array.size for sample, array in zip(samples, arrays, strict=True)):
        drawn["sampled"] = f"{max(one.size for one in samples):,} of {max(one.size for one in arrays):,} elements"
    return drawn


def _sample(array: Array) -> Array:
    """About so many elements as are drawn, every n-th along the longest dimension, as float64 or complex128."""
    view = array
    for axis in sorted(range(array.ndim), key=lambda axis: -array.shape[axis]):
        wanted = view.size // _DRAWN_ELEMENTS
        if wanted > 1:
            stride = min(wanted, view.shape[axis]) | 1  # an even one would meet the same columns of every row
            view = view[(slice(None),) * axis + (slice(None, None, stride),)]
    return view.astype(np.complex128 if array.dtype.kind == "c" else np.float64).reshape(-1)


def _magnitude(values: Array) -> Array:
    return np.abs(values) if values.dtype.kind == "c" else values


def _count(samples: list[Array]) -> tuple[list[float], list[list[int]]]:
    """The edges of the bins and, for each sample, how many of its elements lie in each; NaN and Inf lie in none.

    Everything is scaled by a power of two first, so that no range overflows and none is too narrow for its bins.
    """
    finite = [sample[np.isfinite(sample)] for sample in samples]
    filled = [sample for sample in finite if sample.size]
    if not filled:
        return [], [[] for _ in samples]
    low, high = float(min(one.min() for one in filled)), float(max(one.max() for one in filled))
    exponent = math.frexp(max(abs(low), abs(high)))[1]
    low, high = _widen(math.ldexp(low, -exponent), math.ldexp(high, -exponent))
    counts = [np.histogram(np.ldexp(one, -exponent), bins=_BINS, range=(low, high))[0].tolist() for one in finite]
    edges = np.ldexp(np.linspace(low, high, _BINS + 1), exponent)
    return np.nan_to_num(edges).tolist(), counts


def _widen(low: float, high: float) -> tuple[float, float]:
    if low == high:
        return low - 0.5, high + 0.5
    middle = low / 2 + high / 2
    return (low, high) if high - low > _NARROW else (middle - _NARROW, middle + _NARROW)
