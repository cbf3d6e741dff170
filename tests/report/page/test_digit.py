"""The tables of a page as text: with the digits that it shows, and each column whole or, where it is constant, once."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tensorprobe.report.page.digit import encode_table


def read(text: str) -> Any:
    return json.loads(text, parse_constant=pytest.fail)


def test_numbers_of_all_sizes_have_the_digits_that_are_shown() -> None:
    generator = np.random.default_rng(0)
    numbers = (generator.standard_normal(2000) * 10.0 ** generator.integers(-300, 300, 2000)).tolist()
    numbers += [0.0, -0.0, 1.0, 9.99999999, -0.999999999, 123456789.0, 5e-324, 1.7e308]
    assert read(encode_table({"x": numbers}, 7)) == {"x": [float(f"{number:.7g}") for number in numbers]}


def test_what_is_no_fraction_stays_as_it_is() -> None:
    column = [None, 12345678901, 1.0, True, 1, "NaN", "</script>", [1, 2], 1.23456789]
    found = read(encode_table({"x": column, "y": column[:3] + column[4:7]}, 7))
    assert found == {"x": [*column[:-1], 1.234568], "y": [None, 12345678901, 1.0, 1, "NaN", "</script>"]}
    assert found["x"][3] is True


def test_a_column_with_one_value_has_it_once() -> None:
    table = {"place": [0, 0, 0], "error": [0.5, 0.5, 0.5], "name": [1, 2, 3], "flag": [True, 1, 1]}
    assert read(encode_table(table, 7)) == {"place": [0], "error": [0.5], "name": [1, 2, 3], "flag": [True, 1, 1]}


def test_how_many_lines_there_are_is_never_lost() -> None:
    assert read(encode_table({"place": [0, 0], "name": [7, 7]}, 7)) == {"place": [0, 0], "name": [7, 7]}
    assert read(encode_table({"place": [], "name": []}, 7)) == {"place": [], "name": []}


def test_a_number_that_json_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="nan is a number that JSON lacks"):
        encode_table({"x": [1.0, float("nan")]}, 7)
