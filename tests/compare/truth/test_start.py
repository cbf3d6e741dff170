"""What two runs began with, held against each other."""

from __future__ import annotations

import numpy as np
import pytest

from tensorprobe.compare.truth.start import pair_leaves
from tensorprobe.replay.true_step import TrueValue

INF = float("inf")


@pytest.mark.parametrize(
    ("reference", "candidate", "error"),
    [
        ([3.0, 4.0], [3.0, 3.5], 0.1),
        ([0.0, -INF], [0.0, -1e9], None),  # masks
        ([-INF, -INF], [0.0, -INF], None),
        ([0.0, 0.0], [0.0, 1.0], None),
    ],
    ids=["numbers", "a mask and a large number", "masks", "zeros"],
)
def test_the_size_of_a_difference_is_a_number_or_unsaid(
    reference: list[float], candidate: list[float], error: float | None
) -> None:
    leaves = [TrueValue(0, np.array(one), "float32", None, "input.0") for one in (reference, candidate)]
    assert pair_leaves(*leaves).error == error


def test_what_is_not_a_number_in_both_runs_is_the_same() -> None:
    leaves = [TrueValue(0, np.array([1.0, np.nan]), "float32", None, "input.0") for _ in range(2)]
    assert not pair_leaves(*leaves).is_any_different
