"""Tables and masks that one run starts from are known by what the other computes, and by nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from tensorprobe.compare.truth.computed_leaf import _fit, is_computed
from tensorprobe.store.sketch import sketch_array
from tensorprobe.store.slot import TensorSlot

TABLE = np.cos(np.arange(24, dtype=np.float32).reshape(4, 6))
MASK = np.tril(np.ones((6, 6), dtype=bool))


def describe(array: np.ndarray) -> TensorSlot:
    wide = array.astype(np.float64)
    numbers = (wide.max(), wide.min(), wide.mean(), np.linalg.norm(wide))
    sketch, infinite = sketch_array(array), int(np.isinf(wide).sum())
    return TensorSlot(
        "input.0", "Tensor", str(array.dtype), array.shape, *map(float, numbers), 0, infinite, False, None, None, None,
        None, None, is_input=True, sketch=None if sketch is None else tuple(sketch),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("leaf", "result", "is_one"),
    [
        (TABLE, TABLE, True),
        (TABLE, np.nextafter(TABLE, 2), True),
        (TABLE, TABLE * np.float32(1.001), False),
        (MASK, MASK, True),
        (MASK, ~MASK, True),
        (MASK, np.tril(MASK, -2), False),
        (np.arange(6), np.arange(6), True),
        (np.arange(6), np.arange(6.0), False),
    ],
    ids=["same", "other last digits", "other", "mask", "what a mask leaves out", "other mask", "whole", "other kind"],
)
def test_a_table_may_be_what_the_other_run_computes(leaf: np.ndarray, result: np.ndarray, is_one: bool) -> None:
    assert is_computed(describe(leaf), {leaf.size: [describe(result)]}) == is_one
    assert not is_computed(describe(leaf), {})


POSITIONS = np.arange(8192)
HIDING = np.where(MASK, 0.0, -np.inf).astype(np.float32)


@pytest.mark.parametrize(
    ("recorded", "content", "is_one"),
    [
        (TABLE, TABLE.astype(np.float64) * (1 + 1e-8), True),
        (TABLE, TABLE[::-1], False),
        (MASK, ~MASK, True),
        (MASK, MASK.T, False),
        (POSITIONS, POSITIONS, True),
        (POSITIONS, np.where(POSITIONS == 7, 8, POSITIONS), False),
        (HIDING, np.where(np.triu(MASK), 0.0, -np.inf), False),
        (TABLE, TABLE + 1j * TABLE, False),
    ],
    ids=["rounded", "turned round", "inverted", "other mask", "positions", "one is off", "infinite", "complex"],
)
def test_a_content_is_taken_only_if_all_that_was_recorded_fits(
    recorded: np.ndarray, content: np.ndarray, is_one: bool
) -> None:
    found = _fit(np.ascontiguousarray(content), describe(recorded))
    assert (found is not None) == is_one
