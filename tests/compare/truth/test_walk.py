"""Do two calls give the same?"""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tensorprobe.compare.truth.argument import Arguments
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.compare.truth.walk import Walker
from tensorprobe.replay.result import Coverage
from tensorprobe.replay.true_step import TrueStep
from tests.compare.truth.test_cut import add_call, add_value


def has_same_results(first: Any, second: Any, *, is_given_something: bool = False) -> bool:
    steps, calls = [], []
    for name, array in (("reference", first), ("candidate", second)):
        step = TrueStep(name, {}, [], Coverage())
        given = (add_value(step, np.array([0.3, 0.7]), None),) if is_given_something else ()
        made = add_call(step, "make", given, np.asarray(array))
        calls.append(step.calls[made.maker or ""])
        steps.append(step)
    return Walker(Counterparts(*steps), Mock(spec=Arguments)).has_same_results(*calls)


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        pytest.param(np.arange(4), np.arange(2), id="the numbers of rows"),
        pytest.param(np.zeros((4, 3)), np.zeros((2, 3)), id="zeros for each row"),
        pytest.param(np.array([0.1, 0.2]), np.array([0.1, 0.2]), id="equal numbers"),
    ],
)
def test_what_is_made_of_nothing_is_as_large_as_the_batch(reference: Any, candidate: Any) -> None:
    assert has_same_results(reference, candidate)


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        pytest.param(np.arange(4), np.arange(1, 3), id="counted from one"),
        pytest.param(np.zeros(4), np.ones(2), id="ones for zeros"),
        pytest.param(np.array([0.1, 0.2, 0.3]), np.array([0.1, 0.2]), id="fewer numbers with a meaning"),
        pytest.param(np.zeros(4), np.zeros(0), id="nothing"),
        pytest.param(np.arange(6), np.arange(5), id="one less, which is no part of a batch"),
    ],
)
def test_other_numbers_are_not_the_same(reference: Any, candidate: Any) -> None:
    assert not has_same_results(reference, candidate)


def test_what_is_made_of_something_is_not_the_same_if_it_has_another_size() -> None:
    assert not has_same_results(np.arange(4), np.arange(2), is_given_something=True)
