"""Statistics bound the error from below; checksums say equal or not."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.compare.measure.statistic_measure import measure_checksums, measure_statistics, with_statistics_of
from tensorprobe.compare.measure.tensor_measure import measure_arrays
from tensorprobe.store.slot import TensorSlot
from tests.compare.tensor_slot import make_slot

Array = np.ndarray[Any, Any]
ERRORS = ("euclidean_distance", "max_abs_error", "mean_abs_error", "relative_l2", "relative_max")


def of(values: Any) -> Any:
    array = np.asarray(values)
    return with_statistics_of(make_slot(shape=array.shape), array)


def without_sketch(slot: TensorSlot) -> TensorSlot:
    """As msprobe's dumps are, and those of earlier versions."""
    return dataclasses.replace(slot, sketch=None)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Array, Array]:
    shape = draw(npst.array_shapes(max_dims=2, max_side=6))
    dtype = draw(st.sampled_from(["f4", "f8", "c8", "i4", "?"]))
    kinds = {"f": st.floats(-100, 100, width=32), "c": st.complex_numbers(max_magnitude=100, width=64)}
    elements = kinds.get(np.dtype(dtype).kind, npst.from_dtype(np.dtype(dtype)))
    first, second = (draw(npst.arrays(dtype, shape, elements=elements)) for _ in range(2))
    return first, second


@given(pairs())
def test_the_four_statistics_never_claim_more_error_than_the_tensors_have(pair: tuple[Array, Array]) -> None:
    found, exact = measure_statistics(*map(without_sketch, map(of, pair))), measure_arrays(*pair, 0.0, 0.0)
    for name in ERRORS:
        assert getattr(found, name) <= getattr(exact, name) * (1 + 1e-6) + 1e-9, name
    assert found.norm_reference == pytest.approx(exact.norm_reference)


@given(pairs())
def test_statistics_of_one_tensor_are_equal_to_themselves(pair: tuple[Array, Array]) -> None:
    found = measure_statistics(of(pair[0]), of(pair[0].copy()))
    assert found.is_equal and [getattr(found, name) for name in ERRORS] == [0.0] * len(ERRORS)


def test_each_statistic_alone_is_seen() -> None:
    plain = {"max": 4.0, "min": -2.0, "mean": 0.5, "norm": 10.0, "shape": (25,)}
    expected = {
        "max": ("relative_max", 0.5 / 4.5),
        "min": ("relative_max", 0.5 / 4.0),
        "mean": ("relative_l2", 0.5 * 5 / 10.0),
        "norm": ("relative_l2", 0.5 / 10.5),
    }
    for name, (field, error) in expected.items():
        found = measure_statistics(make_slot(**plain), make_slot(**{**plain, name: plain[name] + 0.5}))  # type: ignore[operator]
        assert found.is_equal is False
        assert getattr(found, field) == pytest.approx(error), name


def test_nothing_is_said_that_statistics_cannot_know() -> None:
    found = measure_statistics(of([1.0, 2.0]), of([1.0, 3.0]))
    unknown = ("cosine", "max_relative_error", "within_1e_3", "within_5e_3", "allclose", "max_ulp", "worst_index")
    assert [getattr(found, name) for name in unknown] == [None] * len(unknown)
    assert found.basis == "statistics"


def test_nan_and_inf_are_counted_by_side() -> None:
    found = measure_statistics(of([1.0, math.nan, math.nan]), of([1.0, math.nan, 2.0]))
    assert (found.nan_only_reference, found.nan_only_candidate, found.is_equal) == (1, 0, False)
    assert found.relative_l2 == found.relative_max == math.inf
    found = measure_statistics(of([1.0, 2.0]), of([1.0, math.inf]))
    assert (found.inf_only_candidate, found.relative_max) == (1, math.inf)
    found = measure_statistics(of([math.inf, 2.0]), of([math.inf, 2.0]))
    assert (found.is_equal, found.relative_l2, found.relative_max) == (True, 0.0, 0.0)


def test_a_dump_that_has_no_counts_still_shows_nan_on_one_side() -> None:
    """msprobe writes no counts: one NaN makes all four NaN."""
    spoilt = make_slot(shape=(3,), max=math.nan, min=math.nan, mean=math.nan, norm=math.nan)
    found = measure_statistics(of([1.0, 2.0, 3.0]), spoilt)
    assert (found.nan_only_candidate, found.relative_l2) == (1, math.inf)
    found = measure_statistics(of([1.0, math.nan, math.nan]), spoilt)
    assert (found.nan_only_reference, found.nan_only_candidate) == (0, 0)
    assert measure_statistics(spoilt, spoilt).is_equal


def test_numbers_of_any_size_are_taken() -> None:
    huge = make_slot(shape=(1 << 70,), max=10**400, min=-(10**400), mean=0, norm=1.0)
    for largest in (1, 1.5):
        found = measure_statistics(huge, make_slot(shape=(1 << 70,), max=largest, min=0, mean=True, norm=1.0))
        assert found.is_equal is False and found.relative_max == math.inf


def test_integers_beyond_2_to_53_are_told_apart_by_their_extremes() -> None:
    found = measure_statistics(of(np.array([2**53, 0])), of(np.array([2**53 + 1, 0])))
    assert found.is_equal is False


def test_statistics_of_a_file_are_those_that_capture_writes() -> None:
    slot = of(np.array([3.0, math.nan, -4.0, 0.0], np.float32))
    assert (slot.max, slot.min, slot.norm, slot.nan_count, slot.inf_count) == (3.0, -4.0, 5.0, 1, 0)
    assert slot.mean == pytest.approx(-1 / 3)
    slot = of(np.array([3 + 4j, 0]))
    assert (slot.max, slot.min, slot.mean, slot.norm) == (5.0, 0.0, 2.5, 5.0)
    assert math.isnan(of([math.nan]).max) and of(np.empty(0)).max is None
    assert of(np.array([2**63 - 1, -1])).max == 2**63 - 1
    assert of([math.inf, 1.0]).norm == math.inf


def test_equal_checksums_make_every_error_zero() -> None:
    slot = make_slot(shape=(4,), checksum="0123abcd", norm=2.0)
    found = measure_checksums(slot, slot)
    assert (found.basis, found.is_equal, found.relative_l2, found.allclose) == ("checksum", True, 0.0, True)
    assert found.norm_reference == found.norm_candidate == 2.0


def test_unequal_checksums_get_their_errors_from_the_statistics() -> None:
    first, second = make_slot(shape=(4,), checksum="0" * 8), make_slot(shape=(4,), checksum="1" * 8)
    assert measure_checksums(first, second) == Measurement("checksum", is_equal=False, element_count=4)
    numbers = {"shape": (2,), "max": 1.0, "min": 0.0, "mean": 0.5, "norm": 1.0}
    found = measure_checksums(make_slot(checksum="0" * 8, **numbers), make_slot(checksum="1" * 8, **numbers))
    assert (found.basis, found.is_equal, found.relative_l2) == ("checksum", False, 0.0)


# -- with a sketch -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(2, 3000))
def test_a_permutation_of_the_elements_is_seen_by_the_sketch_and_not_by_the_four_statistics(
    seed: int, count: int
) -> None:
    random = np.random.default_rng(seed)
    first = random.normal(size=count)
    second = np.roll(first, int(random.integers(1, count)))
    slots = of(first), dataclasses.replace(of(second), mean=of(first).mean, norm=of(first).norm)
    assert measure_statistics(*map(without_sketch, slots)).is_equal
    found = measure_statistics(*slots)
    assert found.is_equal is False
    assert found.euclidean_distance is not None and found.euclidean_distance > 0.0


def test_the_distance_is_estimated_where_the_four_statistics_only_bound_it() -> None:
    random = np.random.default_rng(3)
    shares = []
    for _ in range(200):
        first = random.normal(size=(50, 60))
        error = 1e-3 * random.normal(size=first.shape)
        slots = of(first), of(first + error)
        exact = float(np.linalg.norm(error))
        bound = measure_statistics(*map(without_sketch, slots)).euclidean_distance
        assert bound is not None and bound < exact / 4
        shares.append((measure_statistics(*slots).euclidean_distance or 0.0) / exact)
    assert np.mean([0.25 < share < 4.0 for share in shares]) > 0.97
    assert float(np.median(shares)) == pytest.approx(1.0, abs=0.2)


@given(pairs())
def test_an_estimate_is_never_more_than_both_norms_together_nor_less_than_the_bound(pair: tuple[Array, Array]) -> None:
    slots = of(pair[0]), of(pair[1])
    found, bound = measure_statistics(*slots), measure_statistics(*map(without_sketch, slots))
    norms = [float(np.linalg.norm(side.astype(np.complex128))) for side in pair]
    assert found.euclidean_distance is not None and bound.euclidean_distance is not None
    assert bound.euclidean_distance <= found.euclidean_distance <= sum(norms) * (1 + 1e-6) + 1e-9


def test_sketches_of_equal_elements_that_were_summed_in_another_order_are_equal() -> None:
    first = of(np.arange(1000.0))
    assert first.sketch is not None and first.norm is not None
    second = dataclasses.replace(first, sketch=tuple(number + 1e-7 * first.norm for number in first.sketch))
    assert measure_statistics(first, second).is_equal


def test_a_side_without_a_sketch_is_compared_as_before() -> None:
    first, second = of([1.0, 2.0, 3.0]), of([3.0, 1.0, 2.0])
    for sides in ((without_sketch(first), second), (first, without_sketch(second))):
        assert measure_statistics(*sides).is_equal


def test_a_nan_of_one_side_is_infinitely_far_whatever_the_sketch_says() -> None:
    assert measure_statistics(of([1.0, math.nan]), of([1.0, 0.0])).euclidean_distance == math.inf
