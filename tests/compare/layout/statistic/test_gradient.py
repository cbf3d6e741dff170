"""Gradients that ranks end up with, by their statistics."""

from __future__ import annotations

from tensorprobe.compare.layout.statistic.gradient import SummaryGradient, SummaryGradients
from tensorprobe.compare.layout.statistic.weight import match_summaries
from tensorprobe.replay.true_step import Array
from tests.compare.layout.statistic.ranks import give
from tests.compare.layout.steps import draw, hold

W, G = draw(0, 8, 6), draw(1, 8, 6)


def judge(*gradients: Array | None, parts: tuple[Array, ...] = (W, W)) -> SummaryGradient:
    reference = {0: give(hold(0, {"weight": W}), {"weight": G})}
    candidate = {
        rank: give(hold(rank, {"weight": part}), {} if gradient is None else {"weight": gradient})
        for rank, (part, gradient) in enumerate(zip(parts, gradients, strict=True))
    }
    (found,) = SummaryGradients(reference, candidate, 1e-4).judge(match_summaries(reference, candidate))
    return found


def test_a_gradient_that_all_ranks_have_is_the_same() -> None:
    assert judge(G, G).kind == "same"


def test_gradients_of_parts_are_taken_together() -> None:
    assert judge(G[:4], G[4:], parts=(W[:4], W[4:])).kind == "same"


def test_a_share_that_nothing_has_added_up_is_named_with_its_ranks() -> None:
    share = draw(2, 8, 6)
    found = judge(share, G - share)
    assert (found.kind, found.ranks) == ("share", (0, 1))


def test_a_factor_is_said() -> None:
    found = judge(G * 0.5, G * 0.5)
    assert (found.kind, found.ranks) == ("factor", (0, 1))
    assert found.factor is not None and abs(found.factor - 0.5) < 1e-6


def test_of_something_else_the_rank_is_named() -> None:
    found = judge(G, draw(3, 8, 6))
    assert (found.kind, found.ranks) == ("other", (1,))


def test_one_that_was_not_recorded_is_unknown() -> None:
    assert judge(G, None).kind == "unknown"
