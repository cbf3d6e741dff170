"""compare.csv: every row is a line, numbers are numbers, and no text is a formula."""

from __future__ import annotations

import csv
import io
import math

import pytest

from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.compare.result import Comparison
from tensorprobe.compare.row import COLUMNS, count_rows, iter_blocks
from tensorprobe.report.compare_csv import write_csv
from tests.report.comparison import (
    HOSTILE_NAMES,
    call_result,
    comparison,
    gelu_fault,
    hostile,
    pair,
    plain,
    rank_result,
    tensor,
)


def render(found: Comparison) -> str:
    file = io.BytesIO()
    write_csv(file, iter_blocks(found))
    return file.getvalue().decode("utf-8")


def read(found: Comparison) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(render(found))))


def test_the_columns_are_the_fields_of_a_row() -> None:
    lines = render(gelu_fault()).splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert len(lines) == 1 + 9


def test_a_row() -> None:
    row = read(gelu_fault())[3]
    assert row["reference_name"] == "Functional.gelu.0.forward.output.0"
    assert (row["step"], row["status"], row["role"], row["error"]) == ("0", "different", "source", "0.25")
    assert (row["reference_shape"], row["is_equal"], row["max_ulp"]) == ("[2, 3]", "False", "")


def test_numbers_are_written_in_full() -> None:
    measurement = Measurement("tensor", cosine=0.1 + 0.2, max_ulp=2**63, max_abs_error=math.inf, relative_l2=math.nan)
    values = (pair(tensor(min=-math.inf, max=-3.5), tensor(), "different", measurement=measurement),)
    row = read(comparison(rank_result(call_result(values=values))))[0]
    assert (row["cosine"], row["max_ulp"]) == ("0.30000000000000004", str(2**63))
    assert (row["max_abs_error"], row["relative_l2"]) == ("Infinity", "NaN")
    assert (row["reference_min"], row["reference_max"]) == ("-Infinity", "-3.5")


def test_a_negative_argument_is_no_formula() -> None:
    values = (
        pair(plain("input.1", -1), plain("input.1", -1e-05)),
        pair(plain("input.2", [-1]), plain("input.2", "-x")),
    )
    rows = read(comparison(rank_result(call_result(values=values))))
    assert (rows[0]["reference_value"], rows[0]["candidate_value"]) == ("-1", "-1e-05")
    assert (rows[1]["reference_value"], rows[1]["candidate_value"]) == ("[-1]", "'-x'")


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, "＝1+1", "\n=1"], ids=range(len(HOSTILE_NAMES) + 2))
def test_no_text_is_a_formula_and_every_row_is_one_line(name: str) -> None:
    found = hostile(name)
    text = render(found)
    assert len(text.split("\n")) == 1 + count_rows(found) + 1
    assert all(char.isprintable() or char == "\n" for char in text)
    for row in read(found):
        for column, cell in row.items():
            is_number = column in ("error", "tolerance") or column.endswith("difference")
            assert is_number or not cell.startswith(("=", "+", "-", "@", "\t", "\r", "＝"))


def test_pandas_reads_it() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(io.StringIO(render(gelu_fault())))
    assert frame.error.max() == 0.25
    assert list(frame.columns) == list(COLUMNS)
