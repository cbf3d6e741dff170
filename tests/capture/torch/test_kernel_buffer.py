"""The rows that the programs of the kernel wrote, as the numbers of each tensor."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tensorprobe.capture.torch.kernel_buffer import merge_rows

INF = math.inf


def row(largest: float, smallest: float, infs: int) -> list[float]:
    """Of a program: the sums are of what is finite."""
    return [largest, smallest, 6.0, 8.0, 1.0, infs, 1.0, 2.0, 3.0, 4.0]


def test_the_rows_of_a_tensor_are_added_up() -> None:
    rows = np.array([row(3.0, -1.0, 0), row(2.0, -4.0, 0), row(5.0, 5.0, 0)])
    first, second = merge_rows(rows, [0, 2])
    assert first == [3.0, -4.0, 12.0, 4.0, 2.0, 0.0, 2.0, 4.0, 6.0, 8.0]
    assert second == [5.0, 5.0, 6.0, math.sqrt(8.0), 1.0, 0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("ends", "total"), [((INF, -1.0), INF), ((1.0, -INF), -INF), ((INF, -INF), math.nan)], ids=["plus", "minus", "both"]
)
def test_an_infinity_is_in_the_sum_and_the_norm_and_not_in_the_sketch(ends: tuple[float, float], total: float) -> None:
    (merged,) = merge_rows(np.array([row(1.0, -1.0, 0), row(*ends, 1)]), [0])
    assert merged[2] == pytest.approx(total, nan_ok=True)
    assert (merged[3], merged[5]) == (INF, 1.0)
    assert merged[6:] == [2.0, 4.0, 6.0, 8.0]
