"""Ranks that are driven in one process: they wait for each other, and a deadlock ends with words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tensorprobe.replay.board import Board, Meeting, NotJoinedError, Steps, attend
from tensorprobe.replay.schedule import run_together


class Rank:
    """Goes to meetings in its order, and brings its number."""

    def __init__(self, rank: int, board: Board, order: Sequence[str]) -> None:
        self.rank, self.board, self.order = rank, board, order
        self.found: list[Any] = []

    def steps(self) -> Steps:
        for name in self.order:
            meeting = Meeting((name,), (0, 1), lambda brought: [sum(brought)] * 2)
            try:
                found = yield from attend(
                    self.board, meeting, self.rank, self.rank + 1, f"Distributed.{name}.0.forward"
                )
            except NotJoinedError as error:
                found = str(error)
            self.found.append(found)


def run(*orders: Sequence[str]) -> tuple[list[Rank], list[str]]:
    board = Board(range(len(orders)))
    ranks = [Rank(number, board, order) for number, order in enumerate(orders)]
    return ranks, run_together(ranks)


def test_ranks_that_come_to_the_same_meetings_get_what_they_make_together() -> None:
    ranks, remarks = run(["all_reduce", "broadcast"], ["all_reduce", "broadcast"])
    assert [rank.found for rank in ranks] == [[3, 3], [3, 3]] and remarks == []


def test_a_deadlock_names_the_collective_that_each_rank_waits_in_and_the_rest_is_pinned() -> None:
    ranks, (remark,) = run(["all_reduce", "broadcast", "reduce"], ["broadcast", "all_reduce", "reduce"])
    assert remark == (
        "the ranks wait for each other: rank 0 in Distributed.all_reduce.0.forward; rank 1 in "
        "Distributed.broadcast.0.forward. From there on recorded results are taken for those of collectives"
    )
    assert [rank.found for rank in ranks] == [[remark] * 3] * 2


@pytest.mark.parametrize("ranks", [["all_reduce"], ["all_reduce", "reduce"]])
def test_a_rank_whose_partner_has_ended_does_not_wait_for_ever(ranks: list[str]) -> None:
    (first, second), remarks = run([*ranks, "gather"], ranks)
    assert second.found == [3] * len(ranks)
    assert len(remarks) == 1 and first.found[-1] == remarks[0]


def test_a_rank_without_its_partner_is_told_who_is_missing() -> None:
    ranks, remarks = run(["all_reduce"])
    assert ranks[0].found == ["rank 1 is not replayed with it"] and remarks == []
