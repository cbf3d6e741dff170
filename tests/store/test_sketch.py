"""Four sums with signs see the order of the elements, and estimate the distance of two tensors."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprobe.store.sketch import BLOCK, element_signs, estimate_distance, sketch_array
from tests.length import count_examples

FORMAT_PAGE = Path(__file__).parents[2] / "docs" / "format.md"
ROUNDING = 1e-9


def distance_of(reference: np.ndarray[Any, Any], candidate: np.ndarray[Any, Any]) -> float:
    first, second = sketch_array(reference), sketch_array(candidate)
    assert first is not None and second is not None
    return estimate_distance(first, second)


def numbers(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("count", [1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 40 * BLOCK + 7])
def test_anybody_can_compute_the_sketch_by_the_rule_on_the_page_of_the_format(count: int) -> None:
    rule = next(code for code in re.findall(r"```python\n(.*?)```", FORMAT_PAGE.read_text(), re.S) if "def mix" in code)
    elements = numbers(count, count)
    names: dict[str, Any] = {"elements": elements.tolist()}
    exec(rule, names)
    assert sketch_array(elements) == pytest.approx(names["sketch"], abs=1e-9 * np.linalg.norm(elements))


@settings(deadline=None, max_examples=count_examples(60))
@given(hnp.array_shapes(max_dims=4, max_side=40), st.integers(0, 2**32 - 1), st.floats(1e-6, 1e6))
def test_the_estimate_is_within_a_factor_of_four_of_the_distance(
    shape: tuple[int, ...], seed: int, size: float
) -> None:
    random = np.random.default_rng(seed)
    estimates = []
    for _ in range(9):  # a single one is too small once in 140 times, the middle of nine never
        reference = random.normal(size=shape)
        change = size * random.normal(size=shape)
        estimates.append(distance_of(reference, reference + change) / np.linalg.norm(change))
    assert 0.25 <= float(np.median(estimates)) <= 4.0


def test_one_estimate_is_within_a_factor_of_four_in_all_but_one_of_a_hundred_cases() -> None:
    random = np.random.default_rng(1)
    changes = [random.normal(size=random.integers(1, 5000)) for _ in range(2000)]
    shares = [distance_of(change, np.zeros_like(change)) / np.linalg.norm(change) for change in changes]
    assert np.mean([0.25 <= share <= 4.0 for share in shares]) >= 0.99
    assert max(shares) <= 4.0
    assert np.mean(np.square(shares)) == pytest.approx(1.0, abs=0.1)


@settings(deadline=None)
@given(hnp.arrays(np.float64, hnp.array_shapes(max_side=50), elements=st.floats(-1e6, 1e6)))
def test_equal_tensors_are_at_no_distance_at_all(array: np.ndarray[Any, Any]) -> None:
    assert distance_of(array, array.copy()) == 0.0


@settings(deadline=None)
@given(hnp.array_shapes(min_dims=1, max_dims=4, max_side=30), st.data())
def test_two_layouts_of_one_tensor_have_the_same_sketch(shape: tuple[int, ...], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    view = numbers(3, *shape).transpose(order)
    assert sketch_array(view) == sketch_array(np.ascontiguousarray(view))
    assert sketch_array(view) == sketch_array(np.asfortranarray(view))


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_of_up_to_four_elements_the_estimate_is_the_distance(count: int, seed: int) -> None:
    reference, candidate = numbers(seed, count), numbers(seed + 1, count)
    assert distance_of(reference, candidate) == pytest.approx(float(np.linalg.norm(reference - candidate)))


def test_two_neighbours_that_changed_places_are_seen_wherever_they_are() -> None:
    array = np.arange(3000.0)
    for first in range(0, 2999, 7):
        swapped = array.copy()
        swapped[[first, first + 1]] = swapped[[first + 1, first]]
        is_aligned = first % BLOCK % 4 != 3  # all four signs of others are the same once in sixteen times
        assert not is_aligned or distance_of(array, swapped) > 0.5


@pytest.mark.parametrize("width", [64, 512, 768, 1024, 4096])
def test_two_rows_that_changed_places_are_seen_whatever_their_width(width: int) -> None:
    array = numbers(5, 64, width)
    for other in range(1, 64):
        swapped = array.copy()
        swapped[[0, other]] = swapped[[other, 0]]
        share = distance_of(array, swapped) / np.linalg.norm(array - swapped)
        assert 0.05 < share < 4.0


@pytest.mark.parametrize("width", [64, 512, 1024, 4096])
def test_a_single_channel_that_is_off_everywhere_is_seen(width: int) -> None:
    """Where all rows were one sign table, its errors would cancel."""
    for channel in range(0, width, width // 16):
        change = np.zeros((64, width))
        change[:, channel] = 1.0
        assert distance_of(change, np.zeros_like(change)) > 0.05 * 8.0


def test_what_is_not_finite_is_left_out() -> None:
    array = numbers(7, 2000)
    holed = array.copy()
    holed[[3, 1500, 1999]] = [math.nan, math.inf, -math.inf]
    array[[3, 1500, 1999]] = 0.0
    assert sketch_array(holed) == sketch_array(array)


def test_complex_numbers_are_their_two_parts_and_whole_numbers_are_numbers() -> None:
    parts = numbers(9, 600)
    assert sketch_array(parts.view(np.complex128)) == sketch_array(parts)
    whole = np.arange(-500, 500)
    assert sketch_array(whole) == sketch_array(whole.astype(np.float64))
    assert sketch_array(whole > 0) == sketch_array((whole > 0).astype(np.float64))


def test_there_is_none_of_nothing_of_texts_and_of_sums_that_are_too_large() -> None:
    assert sketch_array(np.empty(0)) is None
    assert sketch_array(np.array(["a"])) is None
    assert sketch_array(element_signs(100)[0] * 1.7e308) is None


def test_the_signs_are_as_many_plus_as_minus_and_those_of_two_numbers_have_nothing_to_do_with_each_other() -> None:
    signs = element_signs(50 * BLOCK)
    correlation = signs @ signs.T / signs.shape[1]
    assert np.abs(correlation - np.eye(4)).max() < 0.02
    assert np.abs(signs.mean(axis=1)).max() < 0.02
