"""Numbers in the place of those that were not recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tensorprobe.compare.measure.statistic_measure import with_statistics_of
from tensorprobe.compare.truth.drawing import can_draw, draw
from tensorprobe.store.slot import TensorSlot

Array = np.ndarray[Any, Any]


def describe(array: Array, dtype: str | None = None) -> TensorSlot:
    """What statistics say of it."""
    empty = dict.fromkeys(("max", "min", "mean", "norm", "nan_count", "inf_count", "requires_grad", "checksum"))
    named = dict.fromkeys(("data_name", "source", "reason", "note"))
    slot = TensorSlot(
        slot="",
        type="torch.Tensor",
        dtype=dtype or str(array.dtype),
        shape=array.shape,
        is_input=True,
        **empty,
        **named,
    )
    return with_statistics_of(slot, array)


KINDS = st.sampled_from(["float32", "float64", "int64", "int32"])
CONTENTS = KINDS.flatmap(
    lambda kind: arrays.arrays(
        kind,
        arrays.array_shapes(max_dims=3, max_side=6),
        elements=st.integers(-50, 50) if kind.startswith("int") else st.floats(-50, 50, width=32),
    )
)


@settings(deadline=None)
@given(CONTENTS)
def test_what_is_drawn_is_of_the_same_kind_and_within_the_extremes(content: Array) -> None:
    slot = describe(content)
    assert can_draw(slot)
    drawn = draw(slot)
    assert drawn.shape == content.shape and drawn.dtype == content.dtype
    assert content.min() <= drawn.min() and drawn.max() <= content.max()


@settings(deadline=None)
@given(CONTENTS)
def test_the_same_statistics_give_the_same_numbers(content: Array) -> None:
    assert np.array_equal(draw(describe(content)), draw(describe(content.copy())))


def test_a_tensor_of_one_number_is_that_number() -> None:
    assert np.array_equal(draw(describe(np.full((2, 3), 1.5, np.float32))), np.full((2, 3), 1.5, np.float32))


def test_it_has_about_the_mean_and_the_size() -> None:
    content = np.random.default_rng(0).normal(3.0, 0.5, 4000).astype(np.float32)
    drawn = draw(describe(content))
    assert drawn.mean() == pytest.approx(3.0, abs=0.05) and drawn.std() == pytest.approx(0.5, abs=0.05)


def test_labels_that_are_left_out_stay_what_they_are() -> None:
    labels = np.array([-100, 3, 7, -100, 2, 0, 5, 1])
    drawn = draw(describe(labels))
    assert set(drawn[drawn < 0]) == {-100} and drawn.max() == 7


@pytest.mark.parametrize("left_out", [1, 3, 8, 11])
def test_as_many_labels_are_left_out(left_out: int) -> None:
    """A loss that is a mean over the others divides by their number."""
    labels = np.random.default_rng(left_out).integers(0, 60, 12)
    labels[:left_out] = -100
    assert (draw(describe(labels)) == -100).sum() == left_out


def test_a_mask_of_infinity_leaves_something_in_each_row() -> None:
    mask = np.triu(np.full((6, 6), -np.inf, np.float32), 1)
    drawn = draw(describe(mask))
    assert set(np.unique(drawn)) == {-np.inf, 0.0} and np.isfinite(drawn).any(-1).all()


def test_nothing_is_drawn_for_what_holds_nan_or_has_no_sketch() -> None:
    assert not can_draw(describe(np.array([1.0, np.nan])))
    assert not can_draw(describe(np.zeros(0, np.float32)))


def test_bfloat16_is_drawn_as_bfloat16() -> None:
    drawn = draw(describe(np.linspace(-1, 1, 8, dtype=np.float32), "torch.bfloat16"))
    assert drawn.dtype.name == "bfloat16"
