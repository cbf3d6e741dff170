"""A mistake in calls that the reference has not: what they are given tells of it."""

from __future__ import annotations

import numpy as np

from tensorprobe.compare.layout.difference import Tracer
from tensorprobe.compare.layout.explanation import Explainer, Explanation
from tensorprobe.compare.layout.relation import Relations
from tensorprobe.compare.layout.way import Way
from tensorprobe.replay.rank_step import RankStep
from tests.compare.layout.steps import StepBuilder, draw

LOGITS, MASK = draw(0, 6, 16), draw(1, 6, 16)
LABELS = np.array([3, 11, 8, 0, 15, 6])


def build_reference() -> RankStep:
    builder = StepBuilder()
    logits = builder.add_call("linear", [builder.add_leaf(draw(2, 6, 16))], LOGITS)
    losses = np.exp(LOGITS).sum(1) - LOGITS[np.arange(6), LABELS]
    found = builder.add_call("cross_entropy", [logits, builder.add_leaf(LABELS)], losses)
    builder.add_call("mean", [found], np.array(losses.mean()), is_root=True)
    return builder.build()


def build_rank(rank: int, first: int, rows: slice = slice(None), labels: slice = slice(None)) -> RankStep:
    """Half of the words, and a loss that the reference does not compute in this way."""
    builder = StepBuilder(rank)
    own = LOGITS[rows, 8 * rank : 8 * rank + 8]
    logits = builder.add_call("linear", [builder.add_leaf(draw(2, 6, 16)[rows])], own)
    largest = builder.add_call("amax", [logits], own.max(1))
    place = builder.add_call(
        "sub", [builder.add_leaf(LABELS[labels])], LABELS[labels] - first, arguments={"input.1": first}
    )
    total = np.sin(own).sum(1) + (LABELS[labels] - first)
    loss = builder.add_call("combine", [largest, place], total)
    builder.add_call("mean", [loss], np.array(total.mean()), is_root=True)
    return builder.build()


def make_tracer(candidate: dict[int, RankStep]) -> Tracer:
    return Tracer(candidate, Relations({0: build_reference()}, candidate, 1e-9))


def explain(candidate: dict[int, RankStep]) -> Explanation:
    tracer = make_tracer(candidate)
    return Explainer({0: build_reference()}, candidate, tracer, 1e-9).explain(tracer.find_beginnings()[0])


def test_an_offset_that_is_not_where_the_part_of_a_rank_begins_is_named() -> None:
    found = explain({0: build_rank(0, 0), 1: build_rank(1, 9)})
    assert found.call is not None
    assert (found.kind, found.call.name, found.ranks) == ("entered", "Torch.sub.2.forward", (1,))
    assert found.because == (
        "its input.1 is 9 on rank 1, whose part of output.0 of Torch.linear.0.forward of the reference begins at 8"
    )


def test_an_offset_that_is_where_the_part_begins_or_ends_is_right() -> None:
    for offsets in ((0, 8), (8, 16)):
        candidate = {rank: build_rank(rank, first) for rank, first in enumerate(offsets)}
        assert Way(candidate, make_tracer(candidate)).find_wrong_place(0) is None


def test_a_number_that_is_the_same_on_all_ranks_says_nothing_of_their_parts() -> None:
    candidate = {rank: build_rank(rank, 5) for rank in (0, 1)}
    assert Way(candidate, make_tracer(candidate)).find_wrong_place(0) is None


def test_labels_of_other_rows_than_the_logits_are_named() -> None:
    found = explain({0: build_rank(0, 0, slice(0, 3), slice(3, 6)), 1: build_rank(1, 8, slice(0, 3), slice(3, 6))})
    assert found.kind == "entered"
    assert found.because == (
        "its input.0 is [0:3] along dimension 0, [0:8] along dimension 1 of output.0 of Torch.linear.0.forward of the "
        "reference, but further on input.0 of Torch.sub.2.forward is [3:6] along dimension 0 of input.0 of "
        "Torch.cross_entropy.1.forward"
    )


def test_a_mask_is_followed_back_to_the_call_that_drew_it() -> None:
    x = draw(3, 6, 16)

    def build(rank: int, drawn: np.ndarray) -> RankStep:
        builder = StepBuilder(rank)
        numbers = builder.add_call("rand", [], drawn, is_random=True)
        mask = builder.add_call("ge", [numbers], drawn >= 0)
        kept = builder.add_call("mul", [builder.add_leaf(x), mask], x * (drawn >= 0))
        builder.add_call("mean", [kept], np.array((x * (drawn >= 0)).mean()), is_root=True)
        return builder.build()

    reference = {0: build(0, MASK)}
    candidate = {0: build(0, MASK), 1: build(1, draw(4, 6, 16))}
    tracer = Tracer(candidate, Relations(reference, candidate, 1e-9))
    found = Explainer(reference, candidate, tracer, 1e-9).explain(tracer.find_beginnings()[0])
    assert found.call is not None
    assert (found.kind, found.call.name, found.ranks) == ("random", "Torch.rand.0.forward", (1,))
    assert found.because == "it drew different random numbers, and rank 0 the same as the reference"
