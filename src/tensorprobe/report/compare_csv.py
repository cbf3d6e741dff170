"""The rows of a comparison as CSV: UTF-8, one line a row, the names of the fields on top."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, BinaryIO

from tensorprobe.compare.row import COLUMNS, Block
from tensorprobe.report.cell import defuse, make_cell
from tensorprobe.report.column_text import LineForm, iter_lines

_is_harmless = re.compile(r"[A-Za-z_][\w.]*", re.ASCII).fullmatch
"""Nearly all names: nothing in them needs to be looked at."""


def write_csv(file: BinaryIO, blocks: Iterable[Block]) -> None:
    """All rows. Control characters are escaped, so that a row is a line."""
    file.write(f"{','.join(COLUMNS)}\n".encode())
    form = LineForm(_make_text, ",")
    for block in blocks:
        file.write(("\n".join(iter_lines(block, form)) + "\n").encode())


def _make_text(value: Any) -> str:
    """`None` is an empty cell; a quotation mark inside a text is doubled."""
    if type(value) is str and _is_harmless(value):
        return value
    cell = make_cell(value)
    if not isinstance(cell, str):
        return "" if cell is None else str(cell)
    text = defuse(cell)
    if "," in text or '"' in text or "\n" in text or "\r" in text:
        return '"' + text.replace('"', '""') + '"'
    return text
