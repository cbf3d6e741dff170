"""Where ranks begin to compute something that is no part of the reference, and why."""

from __future__ import annotations

import numpy as np

from tensorprobe.compare.layout.data import find_untaken
from tensorprobe.compare.layout.difference import Tracer
from tensorprobe.compare.layout.explanation import Explainer, Explanation
from tensorprobe.compare.layout.relation import Relations
from tensorprobe.replay.rank_step import RankStep
from tests.compare.layout.steps import StepBuilder, draw

X, W, R = draw(0, 4, 6), draw(1, 6, 6), draw(2, 4, 6)


def build_reference() -> RankStep:
    builder = StepBuilder()
    product = builder.add_call("matmul", [builder.add_leaf(X), builder.add_leaf(W)], X @ W)
    total = builder.add_call("add", [product, builder.add_leaf(R)], X @ W + R)
    builder.add_call("mean", [total], np.array((X @ W + R).mean()), is_root=True)
    return builder.build()


def build_rank(rank: int, is_summed: bool) -> RankStep:
    """Row parallel: half of the columns of x, half of the rows of w."""
    half = slice(3 * rank, 3 * rank + 3)
    builder = StepBuilder(rank)
    part = X[:, half] @ W[half]
    number = builder.add_call("matmul", [builder.add_leaf(X[:, half]), builder.add_leaf(W[half])], part)
    if is_summed:
        part = X @ W
        number = builder.add_call("all_reduce", [number], part)
    total = builder.add_call("add", [number, builder.add_leaf(R)], part + R)
    builder.add_call("mean", [total], np.array((part + R).mean()), is_root=True)
    return builder.build()


def explain(candidate: dict[int, RankStep]) -> list[Explanation]:
    reference = {0: build_reference()}
    tracer = Tracer(candidate, Relations(reference, candidate, 1e-9))
    explainer = Explainer(reference, candidate, tracer, 1e-9)
    return [explainer.explain(one) for one in tracer.find_beginnings()]


def test_parts_that_are_added_up_lead_to_no_difference() -> None:
    assert explain({rank: build_rank(rank, True) for rank in (0, 1)}) == []


def test_a_part_that_nothing_has_added_up_is_named_where_it_is_used() -> None:
    (found,) = explain({rank: build_rank(rank, False) for rank in (0, 1)})
    assert found.call is not None
    assert (found.call.name, found.ranks) == ("Torch.add.1.forward", (0, 1))
    assert found.because == (
        "its input.0 is one of 2 parts whose sum over ranks 0, 1 is output.0 of Torch.matmul.0.forward of the "
        "reference, but nothing has added them up"
    )


def build_vocabulary_rank(rank: int, is_summed: bool) -> RankStep:
    """Rank 1 has no word of this batch: what it looks up is masked, and nothing but zeros."""
    builder = StepBuilder(rank)
    looked_up = builder.add_call("embedding", [builder.add_leaf(draw(7 + rank, 4, 6))], X if rank == 0 else R * 2 + X)
    masked = X * (rank == 0)
    number = builder.add_call("masked_fill", [looked_up], masked)
    number = builder.add_call("all_reduce", [number], X)
    part = X[:, 3 * rank : 3 * rank + 3] @ W[3 * rank : 3 * rank + 3]
    number = builder.add_call("matmul", [number], part)
    if is_summed:
        part = X @ W
        number = builder.add_call("all_reduce", [number], part)
    total = builder.add_call("add", [number, builder.add_leaf(R)], part + R)
    builder.add_call("mean", [total], np.array((part + R).mean()), is_root=True)
    return builder.build()


def test_what_a_mask_takes_away_is_no_difference() -> None:
    (found,) = explain({rank: build_vocabulary_rank(rank, False) for rank in (0, 1)})
    assert found.call is not None
    assert (found.call.name, found.ranks) == ("Torch.add.4.forward", (0, 1))
    assert "nothing has added them up" in found.because


def test_two_inputs_that_are_different_parts_are_named() -> None:
    def build(rank: int) -> RankStep:
        rows = slice(2 * rank, 2 * rank + 2)
        builder = StepBuilder(rank)
        product = builder.add_call("matmul", [builder.add_leaf(X[rows]), builder.add_leaf(W)], X[rows] @ W)
        total = builder.add_call("add", [product, builder.add_leaf(R[:2])], X[rows] @ W + R[:2])
        builder.add_call("mean", [total], np.array((X[rows] @ W + R[:2]).mean()), is_root=True)
        return builder.build()

    (found,) = explain({rank: build(rank) for rank in (0, 1)})
    assert found.call is not None
    assert (found.kind, found.call.name, found.ranks) == ("entered", "Torch.add.1.forward", (1,))
    assert "its input.0 is [2:4] along dimension 0" in found.because
    assert "its input.1 is [0:2] along dimension 0" in found.because


def test_data_that_no_rank_was_given_is_named() -> None:
    def build(rank: int) -> RankStep:
        builder = StepBuilder(rank)
        builder.add_call("mean", [builder.add_leaf(X[:2])], np.array(X[:2].mean()), is_root=True)
        return builder.build()

    reference = StepBuilder()
    reference.add_call("mean", [reference.add_leaf(X)], np.array(X.mean()), is_root=True)
    (found,) = find_untaken({0: reference.build()}, {rank: build(rank) for rank in (0, 1)})
    assert found.ranks == (0, 1)
    assert (found.doubled.describe(), found.missing.describe()) == (
        "[0:2] along dimension 0",
        "[2:4] along dimension 0",
    )
