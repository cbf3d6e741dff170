"""What a value of a rank is to the reference, by statistics alone."""

from __future__ import annotations

import pytest

from tensorprobe.compare.layout.relation import Relation
from tensorprobe.compare.layout.statistic.relation import SummaryRelations, is_random
from tensorprobe.replay.true_step import Array
from tests.compare.layout.statistic.ranks import give
from tests.compare.layout.steps import StepBuilder, draw

X, Y = draw(0, 8, 6), draw(1, 8, 6)


def relate(*results: Array) -> list[Relation | None]:
    """Of each rank: what its only result is to that of the reference."""
    reference = StepBuilder()
    reference.add_call("linear", [reference.add_leaf(X)], Y)
    candidate = {}
    for rank, result in enumerate(results):
        builder = StepBuilder(rank)
        builder.add_call("linear", [builder.add_leaf(X)], result)
        candidate[rank] = give(builder.build())
    relations = SummaryRelations({0: give(reference.build())}, candidate, 1e-6)
    return [relations.of(rank, one.rank.step.values[1]) for rank, one in candidate.items()]


def test_the_same_is_the_whole() -> None:
    for found in relate(Y, Y):
        assert found is not None and found.part.is_whole and not found.is_share
        assert found.known.call is not None and found.known.call.name == "Torch.linear.0.forward"


def test_rows_one_behind_the_other_are_parts() -> None:
    for found in relate(Y[:4], Y[4:]):
        assert found is not None and not found.part.is_whole and not found.is_share


def test_what_adds_up_over_ranks_is_a_share() -> None:
    other = draw(2, 8, 6)
    for found in relate(other, Y - other):
        assert found is not None and found.ranks == (0, 1)


def test_what_is_neither_is_nothing() -> None:
    assert relate(Y, Y * 1.01)[1] is None
    assert relate(Y[:4], Y[4:] * 1.01) == [None, None]


@pytest.mark.parametrize(("op", "expected"), [("dropout", True), ("rand_like", True), ("linear", False)])
def test_calls_that_draw_are_known_by_their_names(op: str, expected: bool) -> None:
    builder = StepBuilder()
    builder.add_call(op, [], X)
    (call,) = builder.build().step.calls.values()
    assert is_random(call) is expected
