"""Which values of one run are multiples of those of the other?"""

from __future__ import annotations

import numpy as np
import pytest

from tensorprobe.compare.truth.proportional import Proportional
from tensorprobe.compare.truth.value_index import Counterparts
from tests.compare.truth.test_scattered import Array, X, make_step

MASKED = np.where(np.tri(6, 5) > 0, X, -np.inf)


@pytest.mark.parametrize(
    ("reference", "candidate", "factor"),
    [
        (np.exp(X), 0.25 * np.exp(X), 0.25),
        (np.exp(X), -3 * np.exp(X), -3.0),
        (np.exp(X), 2 * np.exp(X).T, 2.0),
        (MASKED, 0.5 * MASKED, 0.5),
        (np.exp(X), 2 * np.exp(X)[::-1], None),
        (np.exp(X), 2 * np.exp(X) + 1e-3, None),
        (np.full((6, 5), 0.3), np.full((6, 5), 0.6), None),  # it says nothing
        (np.exp(X)[:1], 2 * np.exp(X)[:1], None),  # few numbers are multiples by chance
    ],
)
def test_a_multiple_is_found_with_its_factor(reference: Array, candidate: Array, factor: float | None) -> None:
    steps = make_step("reference", first=reference), make_step("candidate", second=candidate)
    proportional = Proportional(Counterparts(*steps))
    found = proportional.multiples("candidate", steps[1].values[1])

    assert [value.number for value, _ in found] == ([] if factor is None else [1])
    assert [one for _, one in found] == pytest.approx([] if factor is None else [factor])
    assert proportional.exists("candidate", steps[1].values[1]) == (factor is not None)


def test_a_value_that_is_there_as_it_is_is_no_multiple() -> None:
    steps = make_step("reference", first=np.exp(X)), make_step("candidate", second=np.exp(X))
    assert Proportional(Counterparts(*steps)).multiples("candidate", steps[1].values[1]) == []
