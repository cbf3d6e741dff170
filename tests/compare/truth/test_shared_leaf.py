"""Which tensors two runs start from in common, as far as statistics tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprobe.compare.truth.lending import Drawer
from tensorprobe.compare.truth.shared_leaf import (
    JointLeaf,
    has_same_numbers,
    join_leaves,
    lies_alike,
    list_extremes,
)
from tensorprobe.store.tensor_layout import numpy_dtype
from tests.compare.truth.test_drawing import describe

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(0)
ROWS = [RANDOM.normal(size=(length, 4)).astype(np.float32) for length in (3, 5, 2, 3)]


def join(whole: Array, *others: Array) -> list[int] | None:
    """The numbers of those that the whole is made of."""
    slots = [describe(one) for one in others]
    found = join_leaves(describe(whole), slots)
    return None if found is None else [slots.index(part) for part in found.parts]


def test_three_projections_in_one_are_found_among_others() -> None:
    assert join(np.concatenate(ROWS[:3]), *ROWS) == [0, 1, 2]
    assert join(np.concatenate([ROWS[0], ROWS[2]]), *ROWS) == [0, 2]


def test_experts_that_are_stacked_are_found() -> None:
    assert join(np.stack([ROWS[0], ROWS[3]]), *ROWS) == [0, 3]


def test_three_projections_are_found_among_biases_that_have_the_length_of_a_row() -> None:
    layers = [RANDOM.normal(size=shape).astype(np.float32) for _ in range(6) for shape in ((16, 16), (16,))]
    assert join(np.concatenate(layers[6:12:2]), *layers) == [6, 8, 10]


def test_experts_that_are_stacked_transposed_are_found() -> None:
    assert join(np.stack([ROWS[0].T, ROWS[3].T]), *ROWS) == [0, 3]


def test_a_part_that_is_the_same_twice_counts_twice() -> None:
    mask = np.array([[0, 1, 1, 1]])
    assert join(np.concatenate([mask, mask]), mask) == [0, 0]


def test_what_does_not_add_up_is_no_whole() -> None:
    assert join(np.concatenate([ROWS[0], 1.001 * ROWS[1]]).astype(np.float32), *ROWS) is None
    assert join(ROWS[0], *ROWS) is None
    assert join(np.concatenate(ROWS), *ROWS[:3]) is None


@settings(deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=5), st.integers(0, 99))
def test_a_tensor_is_found_in_its_parts_however_it_is_cut(lengths: list[int], seed: int) -> None:
    whole = np.random.default_rng(seed).normal(size=(sum(lengths), 3)).astype(np.float32)
    parts = np.split(whole, np.cumsum(lengths)[:-1])
    assert join(whole, *parts) == list(range(len(lengths)))


def test_the_whole_that_is_drawn_is_made_of_the_parts_that_are_drawn() -> None:
    whole, parts = describe(np.concatenate(ROWS[:2])), [describe(one) for one in ROWS[:2]]
    drawer = Drawer(joints=[JointLeaf(whole, tuple(parts))])
    paths = [drawer.find(one) for one in (whole, *parts)]
    drawn = [np.load(drawer.provide(path)) for path in paths if path is not None]
    assert np.array_equal(drawn[0], np.concatenate(drawn[1:]))


def test_a_transposed_weight_has_the_same_numbers_and_a_scaled_one_has_not() -> None:
    weight = describe(ROWS[1])
    assert has_same_numbers(weight, describe(np.ascontiguousarray(ROWS[1].T)))
    assert has_same_numbers(weight, describe(ROWS[1].reshape(5, 1, 4)))
    assert not has_same_numbers(weight, describe(ROWS[1] * np.float32(1.0001)))


@pytest.mark.parametrize("is_whole_first", [True, False])
def test_what_is_drawn_for_a_stack_is_what_is_drawn_for_its_experts_transposed(is_whole_first: bool) -> None:
    whole, parts = describe(np.stack([ROWS[0].T, ROWS[3].T])), [describe(ROWS[0]), describe(ROWS[3])]
    drawer = Drawer(joints=[JointLeaf(whole, tuple(parts), is_turned=True)])
    wanted = [whole, *parts] if is_whole_first else [*parts, whole]
    paths = [drawer.find(one) for one in wanted]
    drawn = [np.load(drawer.provide(path)) for path in paths if path is not None]
    stacked, experts = (drawn[0], drawn[1:]) if is_whole_first else (drawn[-1], drawn[:-1])
    assert np.array_equal(stacked, np.stack([one.T for one in experts]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_numbers_that_are_rounded_to_a_coarser_dtype_are_the_same(dtype: str) -> None:
    whole = RANDOM.normal(size=(6, 5)).astype(np.float32)
    fine, coarse = describe(whole), describe(whole.astype(numpy_dtype(dtype)), dtype)
    assert set(list_extremes(fine)) & set(list_extremes(coarse))
    assert has_same_numbers(fine, coarse) and has_same_numbers(coarse, fine)
    assert lies_alike(fine, coarse)


def test_other_numbers_are_not_the_same_in_a_coarser_dtype() -> None:
    whole, other = RANDOM.normal(size=(2, 6, 5)).astype(np.float32)
    other[0, 0], other[0, 1] = whole.max(), whole.min()  # with the same extremes
    fine, coarse = describe(np.clip(whole, -1, 1)), describe(np.clip(other, -1, 1).astype(np.float16), "float16")
    assert set(list_extremes(fine)) & set(list_extremes(coarse))
    assert not (has_same_numbers(fine, coarse) and lies_alike(fine, coarse))
    assert not lies_alike(fine, describe(np.clip(whole, -1, 1)[::-1].astype(np.float16), "float16"))


def test_a_mask_of_infinities_is_the_same_as_itself() -> None:
    mask = describe(np.triu(np.full((4, 4), -np.inf, np.float32), 1))
    assert has_same_numbers(mask, mask) and lies_alike(mask, mask)


def test_two_weights_of_one_distribution_are_not_the_same_in_a_coarser_dtype() -> None:
    """Their extremes, their norms and their means are, once they are rounded."""
    query, key = np.random.default_rng(2).uniform(-1 / 32, 1 / 32, size=(2, 256, 256)).astype(np.float32)
    coarse = describe(key.astype(numpy_dtype("bfloat16")), "bfloat16")
    assert has_same_numbers(describe(key), coarse)
    assert not has_same_numbers(describe(query), coarse)
