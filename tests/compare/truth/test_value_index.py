"""When are two values one?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.compare.truth import value_index
from tensorprobe.compare.truth.value_index import TOLERANCE, Counterparts, is_same, settle
from tensorprobe.replay.result import Coverage
from tensorprobe.replay.true_step import Array, TrueCall, TrueStep, TrueValue
from tests.compare.truth.test_cut import add_call, add_value

X = np.random.default_rng(0).normal(size=(6, 6))
HIDDEN = np.triu(np.ones((6, 6), bool), 1)
LOWEST = float(np.finfo(np.float32).min)


def mask(numbers: Array, number: float) -> Array:
    return np.where(HIDDEN, number, numbers)


@pytest.mark.parametrize("number", [-np.inf, LOWEST, -1e9, -1e4])
def test_what_is_masked_has_any_number(number: float) -> None:
    assert is_same(mask(X, number), mask(X, -np.inf))


@pytest.mark.parametrize("tolerance", [TOLERANCE, 4e-6])
@pytest.mark.parametrize("number", [-np.inf, LOWEST, -2e4])
def test_a_mask_does_not_hide_that_the_rest_differs(number: float, tolerance: float) -> None:
    assert not is_same(mask(X, number), mask(X * 1.001, number), tolerance)


def test_a_mask_that_is_added_to_scores_is_a_mask() -> None:
    assert is_same(np.where(HIDDEN, X - 1e4, X), mask(X, LOWEST))


def test_scores_that_are_large_themselves_are_seen_beside_a_mask() -> None:
    scores = X * 3e4
    assert is_same(mask(scores, LOWEST), mask(scores, -np.inf))
    assert not is_same(mask(scores, LOWEST), mask(scores * 1.001, LOWEST))


def test_masks_of_other_places_differ() -> None:
    assert not is_same(mask(X, LOWEST), np.where(HIDDEN.T, LOWEST, X))


@pytest.mark.parametrize(
    "numbers",
    [
        np.array(-5e4),
        np.array(-2e10),
        np.array([-5e4, -6e4]),
        np.array([-2e9, -3e9]),
        np.array([-5e4, 3e4, 1.0]),
        np.linspace(-2e4, -10, 50),  # the likelihoods of samples
    ],
)
def test_a_large_negative_number_is_a_number(numbers: Array) -> None:
    assert is_same(numbers, numbers * (1 + 1e-12))
    assert not is_same(numbers, numbers * 1.01)


@given(st.lists(st.floats(width=32, allow_nan=True), max_size=12))
def test_every_value_is_itself(numbers: list[float]) -> None:
    array = np.array(numbers, np.float64)
    assert is_same(array, array.copy())
    assert settle(array).shape == array.shape


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
