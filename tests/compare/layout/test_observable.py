"""Losses and gradients of ranks, against those of one process."""

from __future__ import annotations

import pytest

from tensorprobe.compare.layout.observable import GradientJudge, GradientMatch, Loss, list_ranks, match_loss
from tensorprobe.compare.layout.weight import match_weights
from tests.compare.layout.steps import draw, hold

WEIGHT, GRADIENT, SHARE = draw(0, 6), draw(1, 6), draw(2, 6)


@pytest.mark.parametrize(
    ("totals", "words"),
    [
        ({0: 3.0, 1: 3.0}, "the same on all ranks"),
        ({0: 2.0, 1: 4.0}, "the mean over ranks"),
        ({0: 1.0, 1: 2.0}, "the sum over ranks"),
        ({1: 3.0}, "the same on all ranks"),
    ],
)
def test_a_loss_is_read_in_the_way_that_fits(totals: dict[int, float], words: str) -> None:
    found = match_loss(Loss({0: 3.0}), Loss(totals), 1e-9)
    assert found is not None and found[2] == words


def test_another_loss_is_none_of_them() -> None:
    assert match_loss(Loss({0: 3.0}), Loss({0: 3.0, 1: 3.001}), 1e-9) is None


def judge(*gradients: object) -> list[GradientMatch]:
    candidate = {rank: hold(rank, {"w": WEIGHT}, {"w": one}) for rank, one in enumerate(gradients)}  # type: ignore[dict-item]
    holdings = match_weights({0: hold(0, {"w": WEIGHT}, {"w": GRADIENT})}, candidate)
    return GradientJudge(holdings, candidate, 1e-9).judge()


def test_gradients_that_are_the_same_are_that() -> None:
    assert [one.kind for one in judge(GRADIENT, GRADIENT * (1 + 1e-13))] == ["same", "same"]


def test_gradients_that_only_add_up_to_the_right_one_are_shares() -> None:
    found = judge(SHARE, GRADIENT - SHARE)
    assert [(one.kind, one.ranks) for one in found] == [("share", (0, 1)), ("share", (0, 1))]


def test_gradients_that_were_averaged_twice_are_half_of_the_right_one() -> None:
    found = judge(GRADIENT / 2, GRADIENT / 2)
    assert [(one.kind, one.factor) for one in found] == [("factor", pytest.approx(0.5))] * 2


def test_other_gradients_are_something_else() -> None:
    assert [one.kind for one in judge(GRADIENT, SHARE)] == ["same", "other"]


def test_many_ranks_are_not_all_listed() -> None:
    assert list_ranks(range(9)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 …"
