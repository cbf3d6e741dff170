"""What the kernel gives of each tensor, as its numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tensorprobe.capture.torch.kernel_buffer import finish_rows

INF = math.inf


def row(largest: float, smallest: float, infs: int) -> list[float]:
    """Of a tensor: the sums are of what is finite."""
    return [largest, smallest, 6.0, 8.0, 1.0, infs, 1.0, 2.0, 3.0, 4.0]


def test_the_norm_is_the_root_of_the_sum_of_squares() -> None:
    first, second = finish_rows(np.array([row(3.0, -4.0, 0), row(5.0, 5.0, 0)]))
    assert first == [3.0, -4.0, 6.0, math.sqrt(8.0), 1.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    assert second == [5.0, 5.0, 6.0, math.sqrt(8.0), 1.0, 0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("ends", "total"), [((INF, -1.0), INF), ((1.0, -INF), -INF), ((INF, -INF), math.nan)], ids=["plus", "minus", "both"]
)
def test_an_infinity_is_in_the_sum_and_the_norm_and_not_in_the_sketch(ends: tuple[float, float], total: float) -> None:
    (merged,) = finish_rows(np.array([row(*ends, 1)]))
    assert merged[2] == pytest.approx(total, nan_ok=True)
    assert (merged[3], merged[5]) == (INF, 1.0)
    assert merged[6:] == [1.0, 2.0, 3.0, 4.0]
