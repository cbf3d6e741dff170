"""A comparison as a workbook: the verdict on the first sheet, all values on the second, coloured, with filters.

xlsxwriter makes the workbook with the first sheet and the head of the second. The rows, of which there may be millions
of cells, are put into it afterwards, many at a time, so memory stays flat. Names come from the dumps: every text is
written as text, never as a formula, a link or markup.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tensorprobe.compare.row import COLUMNS, Block, count_block, count_rows
from tensorprobe.errors import UsageError
from tensorprobe.report.cell import Cell
from tensorprobe.report.compare_statement import iter_statements
from tensorprobe.report.compare_summary import Summary
from tensorprobe.report.xlsx_sheet import MAX_EXACT_INTEGER, fill_sheet, make_plain

MAX_ROWS = 1_048_575
"""What a sheet holds beneath its header."""

_STATUS_COLOURS = {"equal": "#E2F0D9", "close": "#FFF2CC", "different": "#F8CBAD", "not comparable": "#D9D9D9"}
_ROLE_COLOURS = {
    "source": "#FF7C80",
    "entered": "#FFA07A",
    "drift": "#FFD966",
    "discontinuity": "#FFE699",
    "propagated": "#FCE4D6",
    "not compared": "#D9D9D9",
}
_COLOURS = {"status": _STATUS_COLOURS, "role": _ROLE_COLOURS}
_WIDTHS = {"reference_name": 44, "candidate_name": 44, "module_path": 28, "reason": 40, "because": 40}
_WIDTHS |= {
    "reference_data_name": 44,
    "candidate_data_name": 44,
    "reference_location": 60,
    "candidate_location": 60,
    "status": 14,
    "role": 13,
    "step": 6,
    "rank": 8,
}
_MIN_WIDTH = 10
_LABEL_WIDTH = 16
_SUMMARY_WIDTH = 120


def check_xlsx() -> None:
    """Is there what writes workbooks? Asked before the long work."""
    try:
        import xlsxwriter  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError('compare.xlsx needs xlsxwriter: pip install "tensorprobe[compare]"') from error


def write_xlsx(
    file: BinaryIO, summary: Summary, blocks: Iterable[Block], folder: Path, max_rows: int = MAX_ROWS
) -> str | None:
    """The workbook; what did not fit into it, in words. `folder` holds what is not yet in the file."""
    import xlsxwriter
    from xlsxwriter.exceptions import XlsxWriterException

    count = count_rows(summary.comparison)
    left_out = _describe_left_out(count, max_rows)
    made = io.BytesIO()
    with tempfile.TemporaryDirectory(prefix=".compare-", dir=folder, ignore_cleanup_errors=True) as temporary:
        workbook = xlsxwriter.Workbook(made, {"constant_memory": True, "tmpdir": temporary})
        summary_sheet, value_sheet = (workbook.add_worksheet(title) for title in ("verdict", "values"))
        _Summary(workbook, summary_sheet).write(summary, left_out)
        samples = _write_head(workbook, value_sheet, min(count, max_rows))
        try:
            workbook.close()
        except XlsxWriterException as error:  # it hides an OSError such as a full disk
            raise OSError(str(error)) from error
    fill_sheet(file, made, samples, _limit(blocks, max_rows))
    return left_out


def _limit(blocks: Iterable[Block], max_rows: int) -> Iterator[Block]:
    left = max_rows
    for block in blocks:
        if left > 0:
            yield block if count_block(block) <= left else {name: column[:left] for name, column in block.items()}
        left -= count_block(block)  # the others are taken, too: their progress is counted


def _describe_left_out(count: int, max_rows: int) -> str | None:
    if count <= max_rows:
        return None
    missing = f"the last {count - max_rows:,} of {count:,}"
    return f"a sheet holds {max_rows:,} rows: {missing} are only in compare.csv and compare.json"


def _write_head(workbook: Any, sheet: Any, count: int) -> list[tuple[str, str]]:
    """All of the second sheet but its rows. In their place a row for each colour: the column and word that have it."""
    header = workbook.add_format({"bold": True, "bottom": 1, "bg_color": "#DDEBF7"})
    for index, name in enumerate(COLUMNS):
        sheet.set_column(index, index, _WIDTHS.get(name, max(_MIN_WIDTH, len(name) + 3)))
        sheet.write_string(0, index, name, header)
    sheet.freeze_panes(1, 0)
    sheet.autofilter(0, 0, count, len(COLUMNS) - 1)
    samples = [(name, word) for name, colours in _COLOURS.items() for word in colours]
    for row, (name, word) in enumerate(samples, 1):
        colour = workbook.add_format({"bg_color": _COLOURS[name][word]})
        sheet.write_string(row, COLUMNS.index(name), word, colour)
    return samples


def write_cell(sheet: Any, row: int, column: int, cell: Cell, cell_format: Any = None) -> None:
    """A number as a number, a truth value as one, everything else as text."""
    if isinstance(cell, bool):
        sheet.write_boolean(row, column, cell, cell_format)
    elif isinstance(cell, float) or (isinstance(cell, int) and abs(cell) <= MAX_EXACT_INTEGER):
        sheet.write_number(row, column, cell, cell_format)
    elif cell is not None:
        sheet.write_string(row, column, make_plain(str(cell)), cell_format)


class _Summary:
    """The first sheet: labels and texts, line by line."""

    def __init__(self, workbook: Any, sheet: Any) -> None:
        self._sheet = sheet
        self._row = 0
        self._bold = workbook.add_format({"bold": True, "valign": "top"})
        self._wrapped = workbook.add_format({"text_wrap": True, "valign": "top"})
        self._headline = workbook.add_format({"bold": True, "font_size": 14, "text_wrap": True})
        self._kinds = {
            kind: workbook.add_format({"bg_color": colour})
            for kind, colour in {"agree": "#E2F0D9", "not compared": "#D9D9D9", "": "#F8CBAD"}.items()
        }

    def write(self, summary: Summary, left_out: str | None) -> None:
        self._sheet.set_column(0, 0, _LABEL_WIDTH)
        self._sheet.set_column(1, 1, _SUMMARY_WIDTH)
        self._line("verdict", summary.verdict.headline, self._headline)
        for text in summary.verdict.evidence:
            self._line("", text, self._wrapped)
        self._row += 1
        for statement in iter_statements(summary, "they are on the sheet of values"):
            self._line(statement.label, statement.text, self._wrapped)
        if left_out:
            self._line("left out", left_out, self._wrapped)
        if summary.has_several_ranks:
            self._write_matrix(summary)

    def _line(self, label: str, text: str, text_format: Any) -> None:
        if label:
            self._sheet.write_string(self._row, 0, label, self._bold)
        self._sheet.write_string(self._row, 1, make_plain(text), text_format)
        self._row += 1

    def _write_matrix(self, summary: Summary) -> None:
        """One line a step and rank: a column a rank would not fit beside the texts above."""
        matrix = summary.matrix
        self._row += 1
        for step in matrix.steps:
            for rank in matrix.ranks:
                kind = matrix.kind(step, rank)
                if kind is not None:
                    place = rank if step is None else f"step{step}/{rank}"
                    write_cell(self._sheet, self._row, 0, place)
                    write_cell(self._sheet, self._row, 1, kind, self._kinds.get(kind, self._kinds[""]))
                    self._row += 1
