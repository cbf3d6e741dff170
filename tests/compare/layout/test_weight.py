"""Which weights of the reference each rank holds."""

from __future__ import annotations

import numpy as np

from tensorprobe.compare.layout.weight import count_kinds, match_weights
from tests.compare.layout.steps import draw, hold

UP, NORM = draw(0, 8, 4), draw(1, 4)


def test_slices_and_replicas_are_found_under_whatever_name() -> None:
    candidate = {rank: hold(rank, {"w": UP[4 * rank : 4 * rank + 4], "norm": NORM}) for rank in (0, 1)}
    found = match_weights({0: hold(0, {"up": UP, "norm": NORM})}, candidate)
    assert [(one.rank, one.weight.name, one.part.describe()) for one in found.held] == [
        (0, "up", "[0:4] along dimension 0"),
        (0, "norm", ""),
        (1, "up", "[4:8] along dimension 0"),
        (1, "norm", ""),
    ]
    assert (found.strays, found.missing) == ((), [])
    assert count_kinds(found, 2) == {"replicated": 1, "cut": 1, "placed": 0}


def test_a_weight_that_drifted_is_held_against_that_of_its_peers() -> None:
    candidate = {0: hold(0, {"norm": NORM}), 1: hold(1, {"norm": NORM * 0.99})}
    (stray,) = match_weights({0: hold(0, {"norm": NORM})}, candidate).strays
    assert (stray.rank, stray.name) == (1, "norm")
    assert stray.error is not None and abs(stray.error - 0.01) < 1e-12


def test_a_weight_of_which_a_part_is_nowhere_is_missing() -> None:
    candidate = {0: hold(0, {"up": UP[:4]}), 1: hold(1, {"up": UP[:4]})}
    assert match_weights({0: hold(0, {"up": UP})}, candidate).missing == ["up"]


def test_parts_of_a_reference_with_ranks_are_put_together_with_their_gradients() -> None:
    gradient = draw(2, 8, 4)
    reference = {
        rank: hold(rank, {"up": UP[4 * rank : 4 * rank + 4]}, {"up": gradient[4 * rank : 4 * rank + 4]})
        for rank in (0, 1)
    }
    (held,) = match_weights(reference, {0: hold(0, {"up": UP}, {"up": gradient})}).held
    np.testing.assert_array_equal(held.expected, gradient)
