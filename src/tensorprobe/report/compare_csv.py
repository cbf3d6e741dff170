"""The rows of a comparison as CSV: UTF-8, one line a row, the names of the fields on top."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import BinaryIO

from tensorprobe.compare.row import COLUMNS, Row
from tensorprobe.report.cell import Cell, defuse, make_cell


def write_csv(file: BinaryIO, rows: Iterable[Row]) -> None:
    """All rows. Control characters are escaped, so that a row is a line."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([_defused(make_cell(getattr(row, name))) for name in COLUMNS])
    text.flush()
    text.detach()


def _defused(cell: Cell) -> Cell:
    return defuse(cell) if isinstance(cell, str) else cell
