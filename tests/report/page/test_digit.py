"""Numbers are cut to the digits that a page shows, many at a time, to what Python's own formatting makes of each."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tensorprobe.report.page.digit import shorten_numbers


def test_numbers_of_all_sizes_are_what_formatting_makes_of_them() -> None:
    generator = np.random.default_rng(0)
    numbers = (generator.standard_normal(20_000) * 10.0 ** generator.integers(-300, 300, 20_000)).tolist()
    assert shorten_numbers(numbers, 7) == [float(f"{number:.7g}") for number in numbers]


@pytest.mark.parametrize("number", [0.0, -0.0, 1.0, 9.99999999, -0.999999999, 123456789.0, 5e-324, 1.7e308])
def test_numbers_at_the_edges_are_what_formatting_makes_of_them(number: float) -> None:
    (found,) = shorten_numbers([number], 7)
    assert found == float(f"{number:.7g}")
    assert math.copysign(1, found) == math.copysign(1, number)


def test_what_is_no_fraction_stays_as_it_is() -> None:
    column = [None, 12345678901, True, "NaN", 1.23456789]
    found = shorten_numbers(column, 7)
    assert found == [None, 12345678901, True, "NaN", 1.234568]
    assert column[-1] == 1.23456789
