"""The rows of a comparison as CSV: UTF-8, one line a row, the names of the fields on top.

There may be millions of cells, most of them empty or one of a few texts: each column is made at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice, repeat
from operator import attrgetter
from typing import Any, BinaryIO

from tensorprobe.compare.row import COLUMNS, Row
from tensorprobe.report.cell import defuse, make_cell

_BLOCK = 4096
_FRACTIONS = frozenset({float, complex})
_REPEATED = frozenset({str, tuple, type(None)})
_is_harmless = re.compile(r"[A-Za-z_][\w.]*", re.ASCII).fullmatch
"""Nearly all names: nothing in them needs to be looked at."""
_get_columns = attrgetter(*COLUMNS)


def write_csv(file: BinaryIO, rows: Iterable[Row]) -> None:
    """All rows. Control characters are escaped, so that a row is a line."""
    file.write(f"{','.join(COLUMNS)}\n".encode())
    for block in _iter_blocks(rows):
        columns = list(map(_make_texts, zip(*map(_get_columns, block), strict=True)))
        lines = map(",".join, zip(*_join_constants(columns, len(block)), strict=True))
        file.write(("\n".join(lines) + "\n").encode())


def _iter_blocks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    waiting = iter(rows)
    while block := list(islice(waiting, _BLOCK)):
        yield block


def _join_constants(columns: Sequence[str | Iterable[str]], count: int) -> Iterator[Iterable[str]]:
    """Half of the columns have one text in all rows: those beside each other become one."""
    for is_constant, found in groupby(columns, lambda column: isinstance(column, str)):
        if is_constant:
            yield repeat(",".join(map(str, found)), count)
        else:
            yield from found


def _make_texts(column: Sequence[Any]) -> str | Iterable[str]:
    """Texts, shapes and single values repeat, and are made once; numbers do not. One text, where all are the same."""
    kinds = set(map(type, column))
    if (len(kinds) == 1 and not kinds & _FRACTIONS) or kinds <= _REPEATED:
        texts = {one: _make_text(one) for one in set(column)}
        return [texts[one] for one in column] if len(texts) > 1 else next(iter(texts.values()))
    if kinds == {float} and all(map(math.isfinite, column)):
        return map(repr, column)
    return map(_make_text, column)


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
