"""Each metric on its own, where plain float64 would round, overflow or lose the last bits."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tensorprobe.compare.measure.metric import (
    ScaledSum,
    add_product,
    cosine,
    exact_distance,
    largest_magnitude,
    relative,
    ulp_distance,
)

numbers = st.floats(allow_nan=False, allow_infinity=False)


def norm(values: list[float]) -> float:
    total, array = ScaledSum(), np.array(values)
    with np.errstate(all="ignore"):
        for piece in np.array_split(array, 3):
            largest = largest_magnitude(piece) if len(piece) else 0.0
            add_product(total, piece, piece, largest, largest)
    return total.root


@given(st.lists(numbers, max_size=20))
def test_a_norm_neither_overflows_nor_vanishes(values: list[float]) -> None:
    exact = math.hypot(*values)  # of any number of values, and scaled
    found = norm(values)
    assert found == exact or found == pytest.approx(exact, rel=1e-12, abs=5e-324)


@pytest.mark.parametrize("size", [1e-320, 1e-300, 1e-200, 1e-30, 1.0, 1e30, 1e200, 1e300])
def test_the_cosine_does_not_depend_on_the_size_of_the_values(size: float) -> None:
    sums = [ScaledSum(), ScaledSum(), ScaledSum()]
    first, second = np.array([3.0, 4.0]) * size, np.array([4.0, 3.0])
    for total, left, right in zip(sums, (first, first, second), (second, first, second), strict=True):
        add_product(total, left, right, largest_magnitude(left), largest_magnitude(right))
    assert cosine(*sums) == pytest.approx(0.96, rel=1e-3 if size < 1e-310 else 1e-12)


def test_the_cosine_of_two_zeros_is_1_and_of_one_zero_0() -> None:
    assert cosine(ScaledSum(), ScaledSum(), ScaledSum()) == 1.0
    assert cosine(ScaledSum(), ScaledSum(4.0), ScaledSum()) == 0.0


@example([(1.0, 0), (1.0, 2)])
@example([(1.0, 2), (1.0, 0)])
@example([(1.0, 800), (1.0, -800)])
@given(st.lists(st.tuples(st.floats(0, 1e10), st.integers(-400, 400).map(lambda half: half * 2)), max_size=10))
def test_scaled_sums_add_up_in_any_order(terms: list[tuple[float, int]]) -> None:
    total = ScaledSum()
    for value, exponent in terms:
        total.add(value, exponent)
    exact = sum(Fraction(value) * Fraction(2) ** exponent for value, exponent in terms)
    found = Fraction(total.value) * Fraction(2) ** total.exponent
    assert abs(found - exact) <= exact / 2**48 + Fraction(2) ** (total.exponent - 1000)


def test_an_error_is_relative_to_what_there_is() -> None:
    assert relative(0.0, 0.0) == 0.0
    assert relative(1.0, 4.0) == 0.25
    assert relative(1e-300, 0.0) == math.inf
    assert relative(math.inf, 3.0) == math.inf


INT64, UINT64 = (np.iinfo(kind) for kind in (np.int64, np.uint64))


@given(st.data(), st.sampled_from([(np.int64, np.int64), (np.uint64, np.uint64), (np.int64, np.uint64)]))
def test_the_distance_of_integers_is_exact(data: st.DataObject, dtypes: tuple[type, type]) -> None:
    limits = [np.iinfo(dtype) for dtype in dtypes]
    first, second = (data.draw(st.integers(int(limit.min), int(limit.max))) for limit in limits)
    distance = exact_distance(np.array([first], dtypes[0]), np.array([second], dtypes[1]))
    assert int(distance[0]) == abs(first - second)


FLOATS = {"float16": np.float16, "float32": np.float32, "float64": np.float64}


@given(st.sampled_from(sorted(FLOATS)), st.data())
def test_one_ulp_is_one_step_to_the_next_number(name: str, data: st.DataObject) -> None:
    dtype = FLOATS[name]
    start = data.draw(npst.from_dtype(np.dtype(dtype), allow_nan=False, allow_infinity=False))
    steps = data.draw(st.integers(0, 20))
    value = np.array([start], dtype)
    for _ in range(steps):
        value = np.nextafter(value, dtype(-np.inf))
    if np.isfinite(value).all():
        first = np.array([start], dtype)
        assert ulp_distance(first, value) == ulp_distance(value, first) == steps


def test_ulp_crosses_zero_and_reaches_the_ends() -> None:
    assert ulp_distance(np.float32([0.0]), np.float32([-0.0])) == 0
    tiny = np.finfo(np.float32).smallest_subnormal
    assert ulp_distance(np.array([tiny]), np.array([-tiny])) == 2
    largest = np.finfo(np.float64).max
    bits = int(np.float64(largest).view(np.int64))
    assert ulp_distance(np.array([largest]), np.array([-largest])) == 2 * bits


def test_ulp_of_every_pair_of_float8_is_their_distance_among_all_numbers() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype, has_sign in (
        (ml_dtypes.float8_e4m3fn, True),
        (ml_dtypes.float8_e5m2, True),
        (ml_dtypes.float8_e8m0fnu, False),
    ):
        every = np.arange(256, dtype=np.uint8).view(dtype)
        finite = every[np.isfinite(every.astype(float))]
        values = finite.astype(float)
        place = {value: index for index, value in enumerate(sorted(set(values.tolist())))}
        for other in finite[::7]:
            expected = max(abs(place[float(other)] - place[value]) for value in values.tolist())
            assert ulp_distance(np.full_like(finite, other), finite, has_sign) == expected
