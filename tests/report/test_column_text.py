"""Rows as lines: every cell is written as it would be by itself, whether or not its text was made before."""

from __future__ import annotations

from typing import Any

import pytest

from tensorprobe.compare.row import COLUMNS, Block, Row, make_block
from tensorprobe.report.column_text import LineForm, iter_lines


def make_rows(**cells: list[Any]) -> Block:
    count = len(next(iter(cells.values())))
    named = [{name: column[number] for name, column in cells.items()} for number in range(count)]
    return make_block([Row(None, "rank", None, None, "equal", "clean", **fields) for fields in named])


def lines(block: Block, **more: Any) -> list[list[str]]:
    return [line.split("|") for line in iter_lines(block, LineForm(repr, "|", **more))]


@pytest.mark.parametrize(
    "column",
    [
        [0.1, 0.1, 2.5],
        [0.0, -0.0, 0.0],
        [-0.0, -0.0, -0.0],
        [1.0, 1, True],
        [float("nan"), float("inf"), 1.0],
        [None, 1.0, None],
        [1, 1, 1],
        [True, True, False],
    ],
)
def test_a_cell_is_written_as_it_is_by_itself(column: list[Any]) -> None:
    found = lines(make_rows(error=column, tolerance=column[::-1]))
    for name, cells in (("error", column), ("tolerance", column[::-1])):
        assert [line[COLUMNS.index(name)] for line in found] == list(map(repr, cells))


def test_each_column_has_its_prefix_its_maker_and_its_form_of_numbers() -> None:
    block = make_rows(error=[0.5, 0.25], tolerance=[0.5, 0.5], reason=["a", "b"])
    form: dict[str, Any] = {"prefixes": {"error": "e="}, "makers": {"reason": str.upper}, "number": "<%r>"}
    found = lines(block, **form)
    picked = [[line[COLUMNS.index(name)] for name in ("error", "tolerance", "reason", "basis")] for line in found]
    assert picked == [["e=<0.5>", "<0.5>", "A", "None"], ["e=<0.25>", "<0.5>", "B", "None"]]
