"""Which calls make something of each number alone?"""

from __future__ import annotations

import numpy as np
import pytest

from tensorprobe.compare.truth.elementwise import is_elementwise
from tensorprobe.replay.true_step import TrueCall, TrueStep, TrueValue
from tests.compare.truth.test_scattered import Array, make_step

X = np.random.default_rng(3).standard_normal((12, 8))
SOFTMAX = np.exp(X) / np.exp(X).sum(-1, keepdims=True)


def give(result: Array, given: Array = X) -> tuple[TrueStep, TrueCall]:
    step = make_step("reference", act=result)
    step.values[0].array = given
    return step, next(iter(step.calls.values()))


@pytest.mark.parametrize("result", [X / (1 + np.exp(-X)), np.tanh(X), np.maximum(X, 0.1), np.sin(3 * X), -X, X**2])
def test_an_activation_is(result: Array) -> None:
    assert is_elementwise(*give(result))


@pytest.mark.parametrize(
    "result",
    [
        SOFTMAX,
        (X - X.mean(-1, keepdims=True)) / X.std(-1, keepdims=True),
        X.cumsum(0),
        X[::-1] ** 2,
        X * X.T.reshape(12, 8),
    ],
    ids=["softmax", "norm", "running sum", "another order", "product"],
)
def test_what_depends_on_other_numbers_is_not(result: Array) -> None:
    assert not is_elementwise(*give(result))


@pytest.mark.parametrize(
    ("result", "given"),
    [
        (X[::-1], X),  # only moves numbers
        (np.full_like(X, 2.0), X),
        (np.tanh(X[:2]), X[:2]),  # of few numbers anything is a function
        (np.tanh(X), X[:6]),
        (np.where(X > 0, X, np.inf), X),
    ],
    ids=["moved", "one number", "few", "other size", "infinite"],
)
def test_what_does_not_show_it_is_not(result: Array, given: Array) -> None:
    assert not is_elementwise(*give(result, given))


def test_two_operands_are_not_one() -> None:
    step, call = give(np.tanh(X))
    step.values.append(TrueValue(len(step.values), X * 2, "float64", None, "input.1"))
    call.inputs["input.1"] = len(step.values) - 1
    assert not is_elementwise(step, call)
