"""A comparison as a workbook: the verdict on the first sheet, all values on the second, coloured, with filters.

Rows go to disk as they are made, so memory stays flat. Names come from the dumps: every text is written as text, never
as a formula, a link or markup.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from tensorprobe.compare.row import COLUMNS, Row, count_rows
from tensorprobe.errors import UsageError
from tensorprobe.report.cell import Cell, make_cell
from tensorprobe.report.compare_statement import iter_statements
from tensorprobe.report.compare_summary import Summary
from tensorprobe.report.escape import clean, shorten

MAX_ROWS = 1_048_575
"""What a sheet holds beneath its header."""

_MAX_TEXT = 16_000  # a cell holds 32,767 of UTF-16's units
_MAX_EXACT_INTEGER = 2**53
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
    file: BinaryIO, summary: Summary, rows: Iterable[Row], folder: Path, max_rows: int = MAX_ROWS
) -> str | None:
    """The workbook; what did not fit into it, in words. `folder` holds what is not yet in the file."""
    import xlsxwriter
    from xlsxwriter.exceptions import XlsxWriterException

    left_out = _describe_left_out(count_rows(summary.comparison), max_rows)
    with tempfile.TemporaryDirectory(prefix=".compare-", dir=folder, ignore_cleanup_errors=True) as temporary:
        workbook = xlsxwriter.Workbook(file, {"constant_memory": True, "tmpdir": temporary})
        workbook.use_zip64()
        summary_sheet, value_sheet = (workbook.add_worksheet(title) for title in ("verdict", "values"))
        _Summary(workbook, summary_sheet).write(summary, left_out)
        _write_values(workbook, value_sheet, islice(rows, max_rows))
        try:
            workbook.close()
        except XlsxWriterException as error:  # it hides an OSError such as a full disk
            raise OSError(str(error)) from error
    return left_out


def _describe_left_out(count: int, max_rows: int) -> str | None:
    if count <= max_rows:
        return None
    missing = f"the last {count - max_rows:,} of {count:,}"
    return f"a sheet holds {max_rows:,} rows: {missing} are only in compare.csv and compare.json"


def _write_values(workbook: Any, sheet: Any, rows: Iterable[Row]) -> None:
    header = workbook.add_format({"bold": True, "bottom": 1, "bg_color": "#DDEBF7"})
    formats = {
        column: {word: workbook.add_format({"bg_color": colour}) for word, colour in colours.items()}
        for column, colours in _COLOURS.items()
    }
    for index, name in enumerate(COLUMNS):
        sheet.set_column(index, index, _WIDTHS.get(name, max(_MIN_WIDTH, len(name) + 3)))
        sheet.write_string(0, index, name, header)
    sheet.freeze_panes(1, 0)
    last = 0
    for last, row in enumerate(rows, 1):
        for index, name in enumerate(COLUMNS):
            value = getattr(row, name)
            if value is not None:
                write_cell(sheet, last, index, make_cell(value), formats[name].get(value) if name in formats else None)
    sheet.autofilter(0, 0, last, len(COLUMNS) - 1)


def write_cell(sheet: Any, row: int, column: int, cell: Cell, cell_format: Any = None) -> None:
    """A number as a number, a truth value as one, everything else as text."""
    if isinstance(cell, bool):
        sheet.write_boolean(row, column, cell, cell_format)
    elif isinstance(cell, float) or (isinstance(cell, int) and abs(cell) <= _MAX_EXACT_INTEGER):
        sheet.write_number(row, column, cell, cell_format)
    elif cell is not None:
        sheet.write_string(row, column, _plain_text(str(cell)), cell_format)


def _plain_text(text: str) -> str:
    """xlsxwriter takes `<r>…</r>` for markup that is already made, and would not escape it."""
    short = shorten(clean(text), _MAX_TEXT)
    return f"'{short}" if short.startswith("<r>") else short


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
        self._sheet.write_string(self._row, 1, _plain_text(text), text_format)
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
