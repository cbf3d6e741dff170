"""The table of the manual, character by character, its CSV, and JSON."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.errors import UsageError
from tensorprobe.model.npy_row import NpyDirComparison, NpyRow
from tensorprobe.report.npy_dir import build_cells, check_csv_place, format_table, iter_json, name_columns, write_csv

TABLE = """\
+-----------------------------------------------------------------------------------------------------------------------------+
|                                                The list of comparison results                                               |
+----------------------+----------------------+--------------------+-------------------+-------------------+------------------+
|   orig array name    |  target array name   | result of allclose | ratio of allclose | cosine similarity | mean & max diffs |
+----------------------+----------------------+--------------------+-------------------+-------------------+------------------+
|     0_input.npy      |     0_input.npy      |        True        |      100.00%      |      1.00000      | 0.00000, 0.00000 |
|     1_dense.npy      |     1_dense.npy      |        True        |      100.00%      |      1.00000      | 0.00000, 0.00000 |
| 2_dense_backward.npy | 2_dense_backward.npy |        True        |      100.00%      |      1.00000      | 0.00000, 0.00000 |
+----------------------+----------------------+--------------------+-------------------+-------------------+------------------+"""  # noqa: E501
TABLE_WITH_SHAPES = """\
+---------------------------------------------------------------------------------------------------------------------------------------------------------------+
|                                                                 The list of comparison results                                                                |
+----------------------+----------------------+---------------+-----------------+--------------------+-------------------+-------------------+------------------+
|   orig array name    |  target array name   | shape of orig | shape of target | result of allclose | ratio of allclose | cosine similarity | mean & max diffs |
+----------------------+----------------------+---------------+-----------------+--------------------+-------------------+-------------------+------------------+
|     0_input.npy      |     0_input.npy      |     (1, 3)    |      (1, 3)     |        True        |      100.00%      |      1.00000      | 0.00000, 0.00000 |
|     1_dense.npy      |     1_dense.npy      |     (1, 2)    |      (1, 2)     |        True        |      100.00%      |      1.00000      | 0.00000, 0.00000 |
| 2_dense_backward.npy | 2_dense_backward.npy |     (1, 2)    |      (1, 2)     |        True        |      100.00%      |      1.00000      | 0.00000, 0.00000 |
+----------------------+----------------------+---------------+-----------------+--------------------+-------------------+-------------------+------------------+"""  # noqa: E501
NUMBERS = {
    "allclose": True,
    "allclose_share": 1.0,
    "cosine": 1.0,
    "mean_abs_error": 0.0,
    "max_abs_error": 0.0,
}


def row(name: str = "0_x.npy", shape: tuple[int, ...] = (1, 2), **fields: Any) -> NpyRow:
    named = {"reference_name": name, "candidate_name": name, "reference_shape": shape, "candidate_shape": shape}
    return NpyRow(**{**named, "status": "close", **NUMBERS, **fields})


def problem(**fields: Any) -> NpyRow:
    return row(**{"status": "not comparable", **dict.fromkeys(NUMBERS), **fields})


def comparison(*rows: NpyRow) -> NpyDirComparison:
    return NpyDirComparison("orig", "target", rows)


SEED = comparison(row("0_input.npy", (1, 3)), row("1_dense.npy"), row("2_dense_backward.npy"))


def test_the_tables_are_those_of_the_manual() -> None:
    assert format_table(SEED, has_shapes=False) == TABLE
    assert format_table(SEED, has_shapes=True) == TABLE_WITH_SHAPES


def test_a_long_name_does_not_wrap() -> None:
    name = "0_" + "x" * 300 + ".npy"
    lines = format_table(comparison(row(name)), has_shapes=False).splitlines()
    assert any(name in line for line in lines)
    assert len({len(line) for line in lines}) == 1


def test_numbers_are_rounded_not_cut_off() -> None:
    cells = build_cells(
        row(allclose=False, allclose_share=0.66666, cosine=0.999999, mean_abs_error=0.000019, max_abs_error=1e3), False
    )
    assert cells[2:] == ("False", "66.67%", "1.00000", "0.00002, 1000.00000")


def test_numbers_that_are_none_are_shown_as_such() -> None:
    cells = build_cells(row(cosine=math.nan, mean_abs_error=math.inf, max_abs_error=math.inf), False)
    assert cells[4:] == ("nan", "inf, inf")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (problem(problem="shape", candidate_shape=(2, 1)), "Shape is inconsistent"),
        (problem(candidate_name=None), "only in orig"),
        (problem(reference_name=None), "only in target"),
        (problem(reference_problem="is cut off"), "orig is cut off"),
        (problem(candidate_problem="holds a pickle, not a tensor"), "target holds a pickle, not a tensor"),
        (problem(reference_problem="is empty", candidate_problem="is missing"), "orig is empty; target is missing"),
        (problem(candidate_name=None, reference_problem="is empty"), "only in orig; orig is empty"),
        (problem(problem="the process died"), "the process died"),
    ],
)
def test_a_pair_without_numbers_has_words(found: NpyRow, words: str) -> None:
    assert build_cells(found, False)[2:] == (words, "nan", "nan", "nan, nan")


def test_a_missing_file_is_none() -> None:
    assert build_cells(problem(candidate_name=None), False)[:2] == ("0_x.npy", "None")
    assert build_cells(problem(candidate_name=None, candidate_shape=None), True)[2:4] == ("(1, 2)", "None")


def test_a_name_does_not_steer_the_terminal() -> None:
    assert build_cells(row("\x1b[31m\n.npy"), False)[0] == "\\x1b[31m\\n.npy"


def read_csv(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("has_shapes", [False, True])
def test_the_csv_has_the_cells_of_the_table(tmp_path: Path, has_shapes: bool) -> None:
    path = tmp_path / "new" / "compare.csv"
    write_csv(path, SEED, has_shapes)
    assert read_csv(path) == [list(name_columns(has_shapes)), *(list(build_cells(one, has_shapes)) for one in SEED)]


def test_an_older_csv_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "compare.csv"
    write_csv(path, comparison(*[row()] * 100), False)
    write_csv(path, comparison(row()), False)
    assert len(path.read_text().splitlines()) == 2
    assert [found.name for found in tmp_path.iterdir()] == ["compare.csv"]


def test_a_name_is_no_formula_in_the_csv(tmp_path: Path) -> None:
    path = tmp_path / "compare.csv"
    write_csv(path, comparison(row("=1+1.npy")), False)
    assert read_csv(path)[1][0] == "'=1+1.npy"


def test_a_csv_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"is a folder. Give a file, such as .*compare\.csv"):
        check_csv_place(tmp_path, [])
    with pytest.raises(UsageError, match="file is no folder"):
        check_csv_place(tmp_path / "file" / "compare.csv", [])
    with pytest.raises(UsageError, match="would lie among the files that are compared"):
        check_csv_place(tmp_path / "0_x.npy", [tmp_path])
    check_csv_place(tmp_path / "new" / "compare.csv", [tmp_path])


def test_a_full_disk_is_an_error_in_words() -> None:
    with pytest.raises(UsageError, match=r"output_file /proc/compare\.csv could not be written"):
        write_csv(Path("/proc/compare.csv"), SEED, False)


def test_json_is_strict_and_has_every_field() -> None:
    found = json.loads("".join(iter_json(comparison(row(cosine=math.nan), problem(candidate_name=None)))))
    assert (found["reference"], found["candidate"], found["agree"]) == ("orig", "target", False)
    assert found["rows"][0]["cosine"] == "NaN"
    assert found["rows"][0]["reference_shape"] == [1, 2]
    assert found["rows"][1]["candidate_name"] is None
