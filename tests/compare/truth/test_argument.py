"""What two calls are given besides tensors, and what of it makes no difference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tensorprobe.compare.truth.argument import Arguments
from tensorprobe.replay.true_step import TrueCall
from tensorprobe.run.call import name_call
from tensorprobe.store.slot import PlainSlot

FILL = "Tensor.masked_fill.0.forward"


def make_run(filling: float) -> Any:
    """One call that puts this number where a mask is."""
    call = name_call(FILL)
    call.framework, call.slots = "pytorch", (PlainSlot("input.2", "float", filling, is_input=True),)
    return SimpleNamespace(by_name={FILL: call})


@pytest.mark.parametrize(
    ("reference", "candidate", "is_told"),
    [(float("-inf"), -1e30, False), (-3.4e38, -1e9, False), (-1e30, 0.0, True), (-1.0, -2.0, True)],
)
def test_two_numbers_that_stand_for_minus_infinity_are_one(reference: float, candidate: float, is_told: bool) -> None:
    arguments = Arguments(cast(Any, make_run(reference)), cast(Any, make_run(candidate)))
    calls = [TrueCall(FILL, 0, "pytorch", "Tensor", "masked_fill", None, None, {}) for _ in range(2)]
    told = arguments.describe_differing(calls[0], calls[1], has_same_shape=True, or_left_out=True)
    assert bool(told) is is_told
