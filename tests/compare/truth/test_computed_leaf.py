"""Tables and masks that one run starts from are known by what the other computes, and by nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from tensorprobe.compare.truth.computed_leaf import is_computed
from tensorprobe.store.sketch import sketch_array
from tensorprobe.store.slot import TensorSlot

TABLE = np.cos(np.arange(24, dtype=np.float32).reshape(4, 6))
MASK = np.tril(np.ones((6, 6), dtype=bool))


def describe(array: np.ndarray) -> TensorSlot:
    wide = array.astype(np.float64)
    numbers = (wide.max(), wide.min(), wide.mean(), np.linalg.norm(wide))
    sketch = sketch_array(array)
    return TensorSlot(
        "input.0", "Tensor", str(array.dtype), array.shape, *map(float, numbers), 0, 0, False, None, None, None, None,
        None, is_input=True, sketch=None if sketch is None else tuple(sketch),
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
