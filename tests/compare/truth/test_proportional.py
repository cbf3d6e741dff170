"""Which values of one run are multiples of those of the other?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tensorprobe
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


def test_a_factor_of_both_sides_of_a_product_is_told_where_the_first_comes_in(tmp_path: Path) -> None:
    class Scores(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.query, self.key, self.factor = nn.Linear(6, 6), nn.Linear(6, 6), factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            query, key = self.query(x), self.key(x)
            if self.factor != 1:
                query, key = query * self.factor, key * self.factor
            return (query @ key.T).softmax(-1).square().sum()

    for name, factor in (("r", 1.0), ("c", 1.01)):
        torch.manual_seed(0)
        model, x = Scores(factor), torch.randn(5, 6)
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(x).backward()
    headline = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict.headline
    assert "Tensor.mul.0.forward of the candidate: it multiplies by 1.01" in headline, headline
