"""What the statistics of parts say of the whole."""

from __future__ import annotations

import numpy as np
import pytest

from tensorprobe.compare.layout.statistic.summary import Summary, join
from tensorprobe.replay.true_step import Array
from tensorprobe.store.sketch import sketch_array
from tests.compare.layout.steps import draw

X = draw(0, 8, 6)


def summarize(array: Array) -> Summary:
    sketch = sketch_array(array)
    assert sketch is not None
    numbers = (float(number) for number in (array.max(), array.min(), array.mean()))
    return Summary(array.shape, *numbers, float(np.linalg.norm(array)), tuple(sketch))


@pytest.mark.parametrize("cuts", [(4,), (1, 3, 7)])
@pytest.mark.parametrize("dim", [0, 1])
def test_parts_one_behind_the_other_have_the_statistics_of_the_whole(cuts: tuple[int, ...], dim: int) -> None:
    parts = [summarize(part) for part in np.split(X, [cut for cut in cuts if cut < X.shape[dim]], dim)]
    assert join(parts).is_like(summarize(X), 1e-12)
    assert not join(parts[1:]).is_like(summarize(X), 1e-2)


def test_one_part_that_differs_a_little_shows_in_the_whole() -> None:
    parts = [summarize(X[:4]), summarize(X[4:] * 1.01)]
    assert not join(parts).is_like(summarize(X), 1e-4)


def test_the_same_numbers_in_another_order_are_told_by_the_sketch() -> None:
    assert not summarize(X[::-1]).is_like(summarize(X), 1e-3)


def test_parts_of_a_sum_are_told_by_mean_and_sketch() -> None:
    parts = [draw(number, 8, 6) for number in range(4)]
    total = summarize(np.sum(parts, axis=0))
    summaries = [summarize(part) for part in parts]
    assert total.is_sum(summaries, 1e-9)
    assert not total.is_sum(summaries[:3], 1e-3)
    assert summarize(np.mean(parts, axis=0)).is_sum(summaries, 1e-9, divisor=4)
    assert not total.is_sum([summarize(part.T) for part in parts], 1e-3)


def test_a_factor_is_found_and_only_where_all_numbers_have_it() -> None:
    assert summarize(X * 0.5).find_factor(summarize(X), 1e-9) == pytest.approx(0.5)
    assert summarize(X + 0.5).find_factor(summarize(X), 1e-4) is None
    assert summarize(X * 0).find_factor(summarize(X * 0), 1e-9) is None
