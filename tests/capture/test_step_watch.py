"""What is found in the records of a step."""

from __future__ import annotations

import random

import pytest

from tensorprobe.capture.step_watch import is_spike


@pytest.mark.parametrize(
    ("loss", "before", "expected"),
    [
        (3.1, [1.0] * 5, True),
        (2.9, [1.0] * 5, False),
        (3.1, [1.0] * 4, False),
        (-9.0, [-10.0] * 5, False),
        (11.0, [-10.0] * 5, True),
        (-40.0, [-10.0] * 5, False),
        (float("nan"), [], True),
        (float("inf"), [1.0], True),
        (0.1, [0.0] * 5, True),
    ],
)
def test_a_spike_is_so_many_times_the_median_above_those_before(
    loss: float, before: list[float], expected: bool
) -> None:
    assert is_spike(loss, before, 3.0) is expected


def test_losses_that_vary_around_zero_are_no_spikes_unless_one_stands_out() -> None:
    draw = random.Random(0)
    losses = [draw.gauss(0.0, 1.0) for _ in range(220)]
    assert not any(is_spike(losses[at], losses[at - 20 : at], 3.0) for at in range(20, 220))
    assert is_spike(20.0, losses[-20:], 3.0)
