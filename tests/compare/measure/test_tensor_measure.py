"""Two arrays are measured as plain, slow, precise arithmetic measures them; special values by rules of their own."""

from __future__ import annotations

import math
import warnings
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tensorprobe.compare.measure import chunk
from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.compare.measure.tensor_measure import measure_arrays
from tests.length import count_examples

Array = np.ndarray[Any, Any]
RTOL, ATOL = 1e-3, 1e-5
DTYPES = ("f2", "f4", "f8", "c8", "c16", "i1", "i4", "i8", "u8", "?")


def measure(reference: Any, candidate: Any, rtol: float = RTOL, atol: float = ATOL) -> Measurement:
    return measure_arrays(np.asarray(reference), np.asarray(candidate), rtol, atol)


def plain(reference: Array, candidate: Array) -> dict[str, float]:
    """The definitions, in the widest arithmetic that numpy has. Of finite values."""
    wide = np.clongdouble if "c" in (reference.dtype.kind, candidate.dtype.kind) else np.longdouble
    first, second = reference.astype(wide).ravel(), candidate.astype(wide).ravel()
    distance, magnitude = np.abs(first - second), np.abs(first)
    norms = [np.sqrt((np.abs(side) ** 2).sum()) for side in (first, second)]
    euclidean = np.sqrt((distance**2).sum())
    largest = max(magnitude.max(), np.abs(second).max())
    with np.errstate(all="ignore"):
        ratio = np.where(distance == 0, 0, distance / magnitude)
    return {
        "euclidean_distance": euclidean,
        "max_abs_error": distance.max(),
        "mean_abs_error": distance.mean(),
        "max_relative_error": ratio.max(),
        "relative_l2": euclidean / max(norms) if euclidean else 0.0,
        "relative_max": distance.max() / largest if distance.max() else 0.0,
        "within_1e_3": (ratio.astype(float) < 1e-3).mean(),  # 1 of 1000 is not below the bound, which is a double
        "within_5e_3": (ratio.astype(float) < 5e-3).mean(),
        "allclose_share": (distance <= ATOL + RTOL * magnitude).mean(),
        "norm_reference": norms[0],
        "norm_candidate": norms[1],
    }


def moderate(dtype: str) -> st.SearchStrategy[Any]:
    """Values whose squares are no trouble for the plain arithmetic either."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return st.floats(-1000, 1000, width=kind.itemsize * 8)  # type: ignore[arg-type]
    if kind.kind == "c":
        return st.complex_numbers(max_magnitude=1000, width=kind.itemsize * 8)  # type: ignore[arg-type]
    return npst.from_dtype(kind)


@st.composite
def pairs(draw: st.DrawFn, dtypes: tuple[str, ...] = DTYPES) -> tuple[Array, Array]:
    shape = draw(npst.array_shapes(max_dims=3, max_side=5))
    sides = []
    for _ in range(2):
        dtype = draw(st.sampled_from(dtypes))
        sides.append(draw(npst.arrays(dtype, shape, elements=moderate(dtype))))
    if draw(st.booleans()):
        place = draw(npst.arrays(bool, shape))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # the values need not fit
            sides[1] = np.where(place, sides[0].astype(sides[1].dtype), sides[1])
    assume(np.isfinite(sides[1]).all())
    # Wide integers are exact among themselves; against a float they are floats.
    assume(
        all(side.dtype.kind in "iub" for side in sides) or not any(side.dtype.str[1:] in ("i8", "u8") for side in sides)
    )
    return sides[0], sides[1]


@settings(max_examples=count_examples(300))
@given(pairs())
@example((np.array([1000.0]), np.array([999.0])))
def test_every_number_is_what_its_definition_says(pair: tuple[Array, Array]) -> None:
    found = measure(*pair)
    assert found.problem is None
    for name, expected in plain(*pair).items():
        assert getattr(found, name) == pytest.approx(float(expected), rel=1e-9, abs=1e-300), name
    assert found.element_count == pair[0].size
    assert found.allclose == (found.allclose_share == 1.0)


@given(pairs())
def test_what_has_no_direction_is_the_same_in_both(pair: tuple[Array, Array]) -> None:
    there, back = measure(*pair), measure(*pair[::-1])
    for name in ("euclidean_distance", "max_abs_error", "mean_abs_error", "relative_l2", "relative_max"):
        assert getattr(there, name) == pytest.approx(getattr(back, name), rel=1e-12), name
    assert there.cosine == pytest.approx(back.cosine, abs=1e-12)
    assert (there.is_equal, there.max_ulp) == (back.is_equal, back.max_ulp)
    assert there.norm_reference == pytest.approx(back.norm_candidate, rel=1e-12)


@given(pairs())
def test_the_worst_place_is_where_the_error_is_largest(pair: tuple[Array, Array]) -> None:
    reference, candidate = pair
    found = measure(reference, candidate)
    if found.max_abs_error == 0.0:
        assert found.worst_index is None
        return
    assert found.worst_index is not None
    assert found.worst_reference == reference[found.worst_index].item()
    assert found.worst_candidate == candidate[found.worst_index].item()
    error = abs(complex(found.worst_reference) - complex(found.worst_candidate))  # type: ignore[arg-type]
    assert error == pytest.approx(found.max_abs_error, rel=1e-12)


@given(pairs(), st.integers(1, 7), st.permutations(range(3)))
def test_how_arrays_lie_in_memory_and_where_they_are_cut_changes_nothing(
    pair: tuple[Array, Array], piece: int, order: list[int]
) -> None:
    expected = measure(*pair)
    axes = [axis for axis in order if axis < pair[0].ndim]
    turned = [np.ascontiguousarray(side.transpose(axes)).transpose(np.argsort(axes)) for side in pair]
    gaps = np.zeros((*pair[0].shape[:-1], pair[0].shape[-1] * 2), pair[0].dtype)[..., ::2]
    gaps[...] = pair[0]
    swapped = pair[0].astype(pair[0].dtype.newbyteorder())
    for reference, candidate in ((turned[0], pair[1]), tuple(turned), (gaps, pair[1]), (swapped, pair[1])):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chunk, "CHUNK_ELEMENTS", piece)
            found = measure(reference, candidate)
        for field in fields(Measurement):
            first, second = getattr(found, field.name), getattr(expected, field.name)
            if field.name.startswith("worst"):
                assert (first is None) == (second is None)  # of several equally bad, any
            elif isinstance(first, float):
                assert first == pytest.approx(second, rel=1e-12), field.name
            else:
                assert first == second, field.name


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_arrays_are_equal_in_every_number(dtype: str) -> None:
    values = np.arange(-2, 4).astype(dtype)
    found = measure(values, values.copy())
    assert found.is_equal and found.allclose and found.cosine == 1.0
    errors = (
        "euclidean_distance",
        "max_abs_error",
        "mean_abs_error",
        "max_relative_error",
        "relative_l2",
        "relative_max",
    )
    assert [getattr(found, name) for name in errors] == [0.0] * len(errors)
    assert (found.within_1e_3, found.within_5e_3, found.allclose_share) == (1.0, 1.0, 1.0)
    assert found.norm_reference == found.norm_candidate == pytest.approx(np.linalg.norm(values.astype(complex)))
    assert found.worst_index is None and found.worst_reference is None


def test_zeros_of_the_other_sign_are_no_error_but_not_bit_for_bit_equal() -> None:
    found = measure([0.0, 1.0], [-0.0, 1.0])
    assert found.is_equal is False
    assert (found.max_abs_error, found.max_ulp, found.max_relative_error, found.allclose) == (0.0, 0, 0.0, True)


def test_nan_and_inf_at_the_same_place_agree() -> None:
    values = np.array([math.nan, math.inf, -math.inf, 3.0], np.float32)
    other = values.copy()
    other[3] = 4.0
    for candidate in (values.copy(), other):
        found = measure(values, candidate)
        assert found.nan_only_reference == found.nan_only_candidate == 0
        assert found.inf_only_reference == found.inf_only_candidate == 0
        assert found.norm_reference == 3.0
        assert found.max_abs_error == (0.0 if candidate is not other else 1.0)
        assert found.is_equal == (candidate is not other)
        assert found.cosine == pytest.approx(1.0)


def test_two_different_nans_agree_without_being_equal() -> None:
    first, second = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32).reshape(2, 1)
    found = measure(first, second)
    assert found.is_equal is False
    assert (found.nan_only_reference, found.max_abs_error, found.relative_l2) == (0, 0.0, 0.0)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8"])
def test_nan_and_inf_on_one_side_are_worse_than_any_number(special: float, dtype: str) -> None:
    reference = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype)
    candidate = reference.copy()
    candidate[0, 0] = 100.0
    candidate[1, 2] = special
    for sides in ((reference, candidate), (candidate, reference)):
        found = measure(*sides)
        assert found.worst_index == (1, 2)
        assert found.max_abs_error == found.relative_l2 == found.relative_max == found.mean_abs_error == math.inf
        assert found.cosine is None and found.allclose is False
        assert found.allclose_share == pytest.approx(4 / 6) == found.within_5e_3
    found = measure(reference, candidate)
    counts = (found.nan_only_reference, found.nan_only_candidate, found.inf_only_reference, found.inf_only_candidate)
    assert counts == ((0, 1, 0, 0) if math.isnan(special) else (0, 0, 0, 1))


def test_infinities_of_opposite_signs_are_counted_on_both_sides() -> None:
    found = measure([math.inf, 1.0], [-math.inf, 1.0])
    assert (found.inf_only_reference, found.inf_only_candidate) == (1, 1)
    assert found.max_abs_error == math.inf
    found = measure([math.inf, 1.0], [math.nan, 1.0])
    assert (found.inf_only_reference, found.nan_only_candidate) == (1, 1)


def test_empty_arrays_are_equal() -> None:
    found = measure(np.empty((0, 3)), np.empty((0, 3)))
    assert found.is_equal and found.element_count == 0 and found.cosine == 1.0
    assert found.relative_l2 == found.max_abs_error == found.mean_abs_error == 0.0
    assert found.allclose and found.allclose_share == 1.0


def test_a_single_number_has_a_place_without_axes() -> None:
    found = measure(np.float32(2.0), np.float32(3.0))
    assert (found.worst_index, found.element_count, found.max_abs_error) == ((), 1, 1.0)


def test_all_zero_arrays() -> None:
    zeros = np.zeros(4, np.float32)
    assert measure(zeros, zeros.copy()).cosine == 1.0
    found = measure(zeros, np.ones(4, np.float32))
    assert (found.cosine, found.relative_l2, found.relative_max) == (0.0, 1.0, 1.0)
    assert found.max_relative_error == math.inf and found.within_1e_3 == 0.0


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e-30, 1e-8, 1.0, 1e30, 1e160, 1e300])
def test_an_error_is_judged_by_the_size_of_the_values(size: float) -> None:
    """Two unrelated gradients of 1e-8 are not close, however small their difference is."""
    reference, candidate = np.array([3.0, 4.0]) * size, np.array([4.0, -3.0]) * size
    found = measure(reference, candidate)
    assert found.cosine == pytest.approx(0.0, abs=1e-12)
    assert found.relative_l2 == pytest.approx(math.sqrt(2))
    assert found.relative_max == pytest.approx(7 / 4)
    assert found.norm_reference == pytest.approx(5 * size)
    assert found.euclidean_distance == pytest.approx(math.sqrt(50) * size)


def test_sizes_may_differ_within_one_array() -> None:
    reference = np.concatenate([np.full(100, 1e-200), np.full(100, 1.0), np.full(100, 1e200)])
    candidate = reference.copy()
    candidate[50] *= 2
    candidate[250] *= 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk, "CHUNK_ELEMENTS", 100)
        found = measure(reference, candidate)
    assert found.norm_reference == pytest.approx(1e201)
    assert found.euclidean_distance == pytest.approx(1e200)
    assert found.max_relative_error == pytest.approx(1.0)


def test_the_largest_float64s_are_measured_without_nan() -> None:
    largest = np.finfo(np.float64).max
    found = measure([largest, 1.0], [-largest, 1.0])
    assert found.cosine == pytest.approx(-1.0)
    assert found.max_abs_error == math.inf
    assert found.nan_only_reference == found.inf_only_reference == 0


def test_float16_near_overflow_is_measured_in_wider_arithmetic() -> None:
    reference = np.full(1000, 65504, np.float16)
    candidate = reference.copy()
    candidate[7] = 65472  # one step below
    found = measure(reference, candidate)
    assert (found.max_abs_error, found.max_ulp) == (32.0, 1)
    assert found.norm_reference == pytest.approx(65504 * math.sqrt(1000))
    assert found.cosine == pytest.approx(1.0) and found.cosine < 1.0
    assert measure(reference, -reference).max_abs_error == 131008.0


def test_float32_is_subtracted_in_float64() -> None:
    found = measure(np.float32([1.0]), np.float32([1e-9]))
    assert found.max_abs_error == 1.0 - float(np.float32(1e-9)) != 1.0


@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_integers_beyond_2_to_53_are_compared_exactly(dtype: str) -> None:
    reference = np.array([2**53, 2**62, 7], dtype)
    candidate = np.array([2**53 + 1, 2**62, 7], dtype)
    found = measure(reference, candidate, rtol=0.0, atol=0.0)
    assert (found.is_equal, found.max_abs_error, found.worst_index, found.allclose) == (False, 1.0, (0,), False)
    assert (found.worst_reference, found.worst_candidate) == (2**53, 2**53 + 1)
    assert found.max_ulp is None


def test_integers_of_other_widths_and_signs_are_compared_by_value() -> None:
    found = measure(np.array([2**63, 5], np.uint64), np.array([-(2**63), 5], np.int64))
    assert found.max_abs_error == 2.0**64
    assert measure(np.array([200], np.uint8), np.array([-56], np.int8)).max_abs_error == 256.0
    found = measure(np.array([3], np.int32), np.array([3], np.int64))
    assert (found.max_abs_error, found.is_equal) == (0.0, False)


def test_booleans_are_0_and_1() -> None:
    found = measure([True, False, True], [True, True, True])
    assert (found.max_abs_error, found.worst_index, found.worst_reference) == (1.0, (1,), False)
    assert found.allclose_share == pytest.approx(2 / 3)


def test_both_parts_of_complex_numbers_count() -> None:
    found = measure(np.complex64([1 + 1j, 2]), np.complex64([1 + 4j, 2]))
    assert (found.max_abs_error, found.worst_index, found.worst_candidate) == (3.0, (0,), 1 + 4j)
    assert found.max_relative_error == pytest.approx(3 / math.sqrt(2))
    assert found.max_ulp == 1 << 24
    nan_in_one_part = np.complex64([complex(1, math.nan), 2])
    assert measure(np.complex64([1, 2]), nan_in_one_part).nan_only_candidate == 1
    assert measure(nan_in_one_part, nan_in_one_part * np.complex64(1)).nan_only_candidate == 0


def test_a_real_array_is_compared_with_a_complex_one() -> None:
    found = measure(np.float32([1, 2]), np.complex64([1, 2 + 1j]))
    assert (found.max_abs_error, found.is_equal) == (1.0, False)


def test_a_lower_precision_is_compared_by_value_and_counted_in_its_own_steps() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    reference = np.float32([1.0, 1.0 + 2**-7, 3.0])
    found = measure(reference, reference.astype(ml_dtypes.bfloat16))
    assert (found.max_abs_error, found.max_ulp, found.is_equal) == (0.0, 0, False)
    found = measure(np.float32([1.0 + 2**-9, 1.0]), np.array([1.0, 1.0 + 2**-6], ml_dtypes.bfloat16))
    assert (found.max_abs_error, found.max_ulp) == (2**-6, 2)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_small_floats_are_compared_by_value(name: str) -> None:
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    reference = np.array([1.0, -2.0, 0.5, 0.0], dtype)
    candidate = np.array([1.0, 2.0, 0.5, math.nan], dtype)
    found = measure(reference, candidate)
    assert (found.nan_only_candidate, found.worst_index, found.worst_reference) == (1, (3,), 0.0)
    found = measure(reference[:3], candidate[:3])
    assert (found.max_abs_error, found.worst_index, found.cosine) == (4.0, (1,), pytest.approx(-2.75 / 5.25))
    assert measure(reference, reference.copy()).is_equal


def test_other_shapes_are_a_problem_and_no_number() -> None:
    found = measure(np.ones((2, 3)), np.ones((3, 2)))
    assert found == Measurement("tensor", problem="shape [2, 3] against [3, 2]", is_other_shape=True)
    assert measure(np.ones(1), np.ones(())).problem == "shape [1] against []"


def test_elements_that_are_no_numbers_are_a_problem() -> None:
    assert "not compared" in str(measure(np.array(["a"]), np.array(["a"])).problem)


def test_parts_of_complex_numbers_that_differ_in_sign_are_far_apart_though_the_numbers_are_near() -> None:
    reference, candidate = np.array([1 + 1e-30j], np.complex64), np.array([1 - 1e-30j], np.complex64)
    steps_from_zero = int(np.array([1e-30], np.float32).view(np.int32)[0])
    assert measure(reference, candidate).max_ulp == 2 * steps_from_zero
    assert measure(reference, reference * np.complex64(1)).max_ulp == 0
