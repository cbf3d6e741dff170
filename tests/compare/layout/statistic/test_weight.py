"""Weights of ranks, by their statistics."""

from __future__ import annotations

from tensorprobe.compare.layout.statistic.step import SummaryRank
from tensorprobe.compare.layout.statistic.weight import SummaryHeld, match_summaries
from tensorprobe.replay.true_step import Array
from tests.compare.layout.statistic.test_summary import summarize
from tests.compare.layout.steps import draw, hold

W, NORM = draw(0, 8, 6), draw(1, 6)


def give(rank: int, **parameters: Array) -> SummaryRank:
    return SummaryRank(hold(rank, {}), parameters={name: summarize(array) for name, array in parameters.items()})


def match(*ranks: dict[str, Array]) -> list[SummaryHeld]:
    candidate = {rank: give(rank, **parameters) for rank, parameters in enumerate(ranks)}
    return match_summaries({0: give(0, weight=W, norm=NORM)}, candidate)


def test_replicas_and_parts_are_those_of_the_reference() -> None:
    held = match({"weight": W[:4], "norm": NORM}, {"weight": W[4:], "norm": NORM})
    assert [(one.name, one.rank, one.kind) for one in held] == [
        *(("weight", 0, "part"), ("weight", 1, "part")),
        *(("norm", 0, "whole"), ("norm", 1, "whole")),
    ]


def test_a_replica_that_is_stale_is_named_with_those_that_fit() -> None:
    first, second = match({"norm": NORM}, {"norm": NORM * 0.99})
    assert (first.kind, second.kind, second.rank, second.peers) == ("whole", "stray", 1, (0,))
    assert second.error is not None and 1e-4 < second.error < 0.1


def test_a_stale_part_is_named_where_another_rank_has_the_right_one() -> None:
    held = match({"weight": W[:4]}, {"weight": W[4:]}, {"weight": W[:4]}, {"weight": W[4:] * 1.01})
    assert [one.kind for one in held] == ["part", "part", "part", "stray"]


def test_where_parts_are_nowhere_else_all_of_them_are_named() -> None:
    held = match({"weight": W[:4]}, {"weight": W[4:] * 1.01})
    assert [one.kind for one in held] == ["stray", "stray"]


def test_of_what_has_another_size_nothing_is_said() -> None:
    held = match({"other": draw(5, 9, 7)})
    assert [one.kind for one in held] == ["unknown"]
