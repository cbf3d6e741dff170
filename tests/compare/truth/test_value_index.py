"""When are two values one?"""

from __future__ import annotations

import numpy as np
import pytest

from tensorprobe.compare.truth import value_index
from tensorprobe.compare.truth.same_array import is_same
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.replay.result import Coverage
from tensorprobe.replay.true_step import Array, TrueCall, TrueStep, TrueValue
from tests.compare.truth.test_cut import add_call, add_value

X = np.random.default_rng(0).normal(size=(6, 6))


def make_loop(count: int) -> TrueStep:
    """Calls that each give what the one before gave: a loop that has come to rest."""
    names = [f"Torch.tanh.{number}.forward" for number in range(count)]
    values = [TrueValue(number, X.copy(), "float32", name, "output.0") for number, name in enumerate(names)]
    calls = [TrueCall(name, at, "pytorch", "Torch", "tanh", None, None, {}, {"o": at}) for at, name in enumerate(names)]
    return TrueStep("loop", {call.name: call for call in calls}, values, Coverage())


def test_values_that_are_equal_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Array] = []
    monkeypatch.setattr(value_index, "is_same", lambda first, *rest: looked.append(first) or is_same(first, *rest))
    counterparts = Counterparts(make_loop(40), make_loop(50))
    values = counterparts.steps["candidate"].values
    assert all(counterparts.exists("candidate", value) for value in values)
    assert len(looked) == 1
    assert all(counterparts.of("candidate", value) == counterparts.steps["reference"].values for value in values)
    assert len(looked) < 10


@pytest.mark.parametrize("is_inverted", [False, True], ids=["the same", "what is hidden"])
def test_a_mask_is_one_mask_whichever_logical_operations_make_it(is_inverted: bool) -> None:
    seen = np.tril(np.ones((5, 5), bool))
    steps = {}
    for name, op, mask in (("reference", "__and__", seen), ("candidate", "logical_or", ~seen if is_inverted else seen)):
        step = TrueStep(name, {}, [], Coverage())
        add_call(step, op, (add_value(step, np.arange(25.0), None),), mask)
        steps[name] = step
    counterparts = Counterparts(steps["reference"], steps["candidate"])
    assert counterparts.exists("candidate", steps["candidate"].values[1])


def test_whole_numbers_are_not_one_value_because_logical_operations_make_them() -> None:
    steps = {}
    for name, op in (("reference", "bitwise_and"), ("candidate", "bitwise_or")):
        step = TrueStep(name, {}, [], Coverage())
        add_call(step, op, (add_value(step, np.arange(25.0), None),), np.ones((5, 5), np.int64))
        steps[name] = step
    counterparts = Counterparts(steps["reference"], steps["candidate"])
    assert not counterparts.exists("candidate", steps["candidate"].values[1])


def test_a_truth_may_be_too_large_to_be_squared() -> None:
    assert value_index.measure(np.array([1e170, 1.0])).norm == np.inf
