"""When are two arrays the same numbers?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.compare.truth.same_array import TOLERANCE, is_same, settle
from tensorprobe.replay.true_step import Array

X = np.random.default_rng(0).normal(size=(6, 6))
HIDDEN = np.triu(np.ones((6, 6), bool), 1)
LOWEST = float(np.finfo(np.float32).min)


def mask(numbers: Array, number: float) -> Array:
    return np.where(HIDDEN, number, numbers)


@pytest.mark.parametrize("number", [-np.inf, LOWEST, -1e9, -1e4])
def test_what_is_masked_has_any_number(number: float) -> None:
    assert is_same(mask(X, number), mask(X, -np.inf))


@pytest.mark.parametrize("tolerance", [TOLERANCE, 4e-6])
@pytest.mark.parametrize("number", [-np.inf, LOWEST, -2e4])
def test_a_mask_does_not_hide_that_the_rest_differs(number: float, tolerance: float) -> None:
    assert not is_same(mask(X, number), mask(X * 1.001, number), tolerance)


def test_a_mask_that_is_added_to_scores_is_a_mask() -> None:
    assert is_same(np.where(HIDDEN, X - 1e4, X), mask(X, LOWEST))


def test_scores_that_are_large_themselves_are_seen_beside_a_mask() -> None:
    scores = X * 3e4
    assert is_same(mask(scores, LOWEST), mask(scores, -np.inf))
    assert not is_same(mask(scores, LOWEST), mask(scores * 1.001, LOWEST))


def test_masks_of_other_places_differ() -> None:
    assert not is_same(mask(X, LOWEST), np.where(HIDDEN.T, LOWEST, X))


@pytest.mark.parametrize(
    "numbers",
    [
        np.array(-5e4),
        np.array(-2e10),
        np.array([-5e4, -6e4]),
        np.array([-2e9, -3e9]),
        np.array([-5e4, 3e4, 1.0]),
        np.linspace(-2e4, -10, 50),  # the likelihoods of samples
    ],
)
def test_a_large_negative_number_is_a_number(numbers: Array) -> None:
    assert is_same(numbers, numbers * (1 + 1e-12))
    assert not is_same(numbers, numbers * 1.01)


@given(st.lists(st.floats(width=32, allow_nan=True), max_size=12))
def test_every_value_is_itself(numbers: list[float]) -> None:
    array = np.array(numbers, np.float64)
    assert is_same(array, array.copy())
    assert settle(array).shape == array.shape
