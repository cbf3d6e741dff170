"""A tensor is known by its statistics in whatever order its numbers lie, and however often; another one is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tensorprobe.compare.judge.content import Content, Contents, read_content
from tensorprobe.compare.measure.statistic_measure import with_statistics_of
from tensorprobe.store.sketch import sketch_array
from tensorprobe.store.slot import TensorSlot
from tests.compare.tensor_slot import make_slot

Array = np.ndarray[Any, Any]
TOLERANCE = 1e-3
NUMBERS = st.floats(-100, 100, width=32)
SHAPES = npst.array_shapes(max_dims=3, max_side=5)
ARRAYS = npst.arrays(np.float64, SHAPES, elements=NUMBERS)
MASKS = npst.arrays(np.bool_, SHAPES).filter(lambda mask: 0 < mask.sum() < mask.size)


def of(array: Array) -> TensorSlot:
    slot = with_statistics_of(make_slot(shape=array.shape), array)
    sketch = sketch_array(array)
    return replace(slot, sketch=None if sketch is None else tuple(sketch))


def read(array: Array) -> Content:
    content = read_content(of(array))
    assert content is not None
    return content


def assert_same(first: Content, second: Content) -> None:
    assert first.kind == second.kind
    assert first[1:] == pytest.approx(second[1:], rel=1e-9, abs=1e-9)


@given(ARRAYS, st.randoms())
def test_a_tensor_in_another_order_has_the_same_content(array: Array, random: Any) -> None:
    order = list(range(array.size))
    random.shuffle(order)
    assert_same(read(array), read(array.reshape(-1)[order]))


@given(ARRAYS, st.integers(1, 5))
def test_a_tensor_that_is_repeated_has_the_same_content(array: Array, count: int) -> None:
    assert_same(read(array), read(np.stack([array] * count)))


@given(st.lists(ARRAYS, min_size=1, max_size=5), st.data())
def test_what_was_given_is_found(arrays: list[Array], data: st.DataObject) -> None:
    known = Contents(map(of, arrays), TOLERANCE)
    assert known.has(of(data.draw(st.sampled_from(arrays))))


@given(ARRAYS, st.floats(-TOLERANCE / 2, TOLERANCE / 2))
def test_a_tensor_is_found_within_the_tolerance(array: Array, error: float) -> None:
    assume(read(array).kind == "numbers")
    assert Contents([of(array)], TOLERANCE).has(of(array * (1 + error)))


@given(ARRAYS, st.sampled_from([1 - 10 * TOLERANCE, 1 + 10 * TOLERANCE]))
def test_a_tensor_whose_norm_is_another_is_not_found(array: Array, factor: float) -> None:
    slot = of(array)
    assume(slot.norm)
    assert not Contents([slot], TOLERANCE).has(replace(slot, norm=float(slot.norm or 0.0) * factor))
    assert not Contents([slot], TOLERANCE).has(of(array * factor))


@pytest.mark.parametrize("field", ["max", "min", "mean"])
def test_a_tensor_of_the_same_norm_is_another_where_one_more_number_differs(field: str) -> None:
    slot = make_slot(shape=(25,), max=4.0, min=-2.0, mean=0.5, norm=10.0)
    assert Contents([slot], TOLERANCE).has(slot)
    assert not Contents([slot], TOLERANCE).has(replace(slot, **{field: getattr(slot, field) + 0.1}))


@given(MASKS)
def test_masks_of_the_same_share_are_one_content_however_they_are_written(mask: Array) -> None:
    forms = [
        mask,
        ~mask,
        mask.astype(np.float32),
        np.where(mask, 0.0, -np.inf).astype(np.float32),
        np.where(mask, -np.inf, 0.0).astype(np.float32),
        np.where(mask, 0.0, -1e9).astype(np.float32),
        np.where(mask, 0.0, np.finfo(np.float32).min).astype(np.float32),
    ]
    for form in forms:
        assert_same(read(form), read(mask))
        assert Contents([of(mask)], TOLERANCE).has(of(form))


@given(MASKS, MASKS)
def test_masks_of_another_share_are_others(first: Array, second: Array) -> None:
    shares = [min(mask.mean(), 1 - mask.mean()) for mask in (first, second)]
    assume(abs(shares[0] - shares[1]) > 2 * TOLERANCE)
    assert not Contents([of(first)], TOLERANCE).has(of(np.where(second, 0.0, -np.inf)))


def test_numbers_from_0_to_1_are_no_mask() -> None:
    assert read(np.array([0.0, 0.5, 1.0, 1.0])).kind == "numbers"


@given(npst.arrays(np.float64, st.integers(2, 4), elements=NUMBERS), st.randoms())
def test_where_order_counts_a_permutation_of_the_same_shape_is_another_tensor(array: Array, random: Any) -> None:
    order = list(range(array.size))
    random.shuffle(order)
    turned = array[order]
    assume(np.linalg.norm(turned - array) > 5 * TOLERANCE * np.linalg.norm(array))
    assert not Contents([of(array)], TOLERANCE, sees_order=True).has(of(turned))
    assert Contents([of(array)], TOLERANCE).has(of(turned))


@given(ARRAYS)
def test_where_order_counts_the_same_order_and_another_shape_are_still_found(array: Array) -> None:
    known = Contents([of(array)], TOLERANCE, sees_order=True)
    assert known.has(of(array.copy()))
    assert known.has(of(np.stack([array.T] * 2)))


def test_a_permutation_of_many_numbers_is_told_by_its_sketch() -> None:
    array = np.random.default_rng(0).standard_normal((64, 48))
    assert not Contents([of(array)], TOLERANCE, sees_order=True).has(of(array[::-1]))


@pytest.mark.parametrize(
    "slot",
    [make_slot(shape=(3,)), of(np.array([1.0, np.nan])), of(np.zeros(0)), replace(of(np.ones(3)), shape=None)],
    ids=["no statistics", "NaN", "empty", "no shape"],
)
def test_of_what_statistics_do_not_tell_nothing_is_found(slot: TensorSlot) -> None:
    assert read_content(slot) is None
    assert not Contents([slot], TOLERANCE).has(slot)


@pytest.mark.parametrize(
    "norm",
    [1e160, np.inf],
)
def test_numbers_too_large_to_be_squared_are_found_or_unknown_but_no_error(norm: float) -> None:
    slot = make_slot(shape=(3,), max=norm if norm < np.inf else 1e308, min=0.0, mean=1.0, norm=norm)
    Contents([slot], TOLERANCE).has(slot)
