"""The rows of a comparison as CSV: UTF-8, one line a row, the names of the fields on top."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, BinaryIO

from tensorprobe.compare.row import COLUMNS, Row
from tensorprobe.report.cell import Cell, defuse, make_cell

_BLOCK = 4096
"""So many rows are turned into cells column by column: a column is of one kind, and its texts repeat."""
_PLAIN: frozenset[type] = frozenset({type(None), bool, int})
_NUMBERS = _PLAIN | {float}


def write_csv(file: BinaryIO, rows: Iterable[Row]) -> None:
    """All rows. Control characters are escaped, so that a row is a line."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for block in _iter_blocks(rows):
        columns = zip(*map(attrgetter(*COLUMNS), block), strict=True)
        writer.writerows(zip(*map(_make_cells, columns), strict=True))
    text.flush()
    text.detach()


def _iter_blocks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    waiting = iter(rows)
    while block := list(islice(waiting, _BLOCK)):
        yield block


def _make_cells(column: Sequence[Any]) -> Iterable[Cell]:
    kinds = set(map(type, column))
    if kinds <= _PLAIN or (kinds <= _NUMBERS and all(map(math.isfinite, (one for one in column if one is not None)))):
        return column
    if kinds <= {str, type(None)}:
        cells = {one: _make_text(one) for one in set(column)}
        return [cells[one] for one in column]
    return map(_make_text, column)


def _make_text(value: Any) -> Cell:
    cell = make_cell(value)
    return defuse(cell) if isinstance(cell, str) else cell
