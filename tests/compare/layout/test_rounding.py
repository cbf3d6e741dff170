"""Weights of one run that the other has in bfloat16."""

from __future__ import annotations

import numpy as np

from tensorprobe.compare.layout.rounding import count_rounded, find_rounded, round_array
from tensorprobe.replay.rank_step import RankStep
from tensorprobe.replay.true_step import Array
from tests.compare.layout.steps import draw, hold

W, B = draw(0, 8, 6), draw(1, 6)


def keep(rank: int, dtype: str, **parameters: Array) -> RankStep:
    step = hold(rank, parameters)
    for value in step.step.values:
        value.dtype, value.key = dtype, value.parameter
    return step


def test_a_float32_weight_is_rounded_where_ranks_have_parts_of_it_in_bfloat16() -> None:
    reference = {0: keep(0, "float32", weight=W, bias=B)}
    halves = round_array(W, "bfloat16")[:4], round_array(W, "bfloat16")[4:]
    candidate = {rank: keep(rank, "bfloat16", weight=half) for rank, half in enumerate(halves)}
    found = find_rounded(reference, candidate)
    assert set(found[0]) == {"weight"}  # nobody has the bias
    assert np.array_equal(found[0]["weight"], round_array(W, "bfloat16"))
    assert not np.array_equal(found[0]["weight"], W)
    assert count_rounded(found) == 1
    assert find_rounded(candidate, reference) == {}


def test_parts_in_float32_are_rounded_where_the_other_has_the_whole_in_float16() -> None:
    parts = {rank: keep(rank, "float32", weight=W[4 * rank : 4 * rank + 4]) for rank in (0, 1)}
    found = find_rounded(parts, {0: keep(0, "float16", weight=round_array(W, "float16"))})
    assert {rank: list(leaves) for rank, leaves in found.items()} == {0: ["weight"], 1: ["weight"]}


def test_other_numbers_are_not_rounded_to_fit() -> None:
    reference = {0: keep(0, "float32", weight=W)}
    assert find_rounded(reference, {0: keep(0, "bfloat16", weight=round_array(W * 0.99, "bfloat16"))}) == {}


def test_what_bfloat16_has_is_left_as_it_is() -> None:
    exact = round_array(W, "bfloat16")
    assert find_rounded({0: keep(0, "float32", weight=exact)}, {0: keep(0, "bfloat16", weight=exact)}) == {}
