"""The rows of a sheet, put into a workbook that was made without them: some thousands at a time, and each distinct cell
is made once.

A cell has no reference: it is the next of its row. Nothing is left out, therefore; an empty cell is `<c/>`.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import IO, Any, BinaryIO
from xml.sax.saxutils import escape

from tensorprobe.compare.row import COLUMNS, Block
from tensorprobe.report.cell import make_cell
from tensorprobe.report.column_text import LineForm, iter_lines
from tensorprobe.report.escape import clean, shorten

MAX_EXACT_INTEGER = 2**53
_MAX_TEXT = 16_000  # a cell holds 32,767 of UTF-16's units
_SHEET = "xl/worksheets/sheet2.xml"
_SAMPLES = re.compile(r'<row r="2".*</row>(?=</sheetData>)', re.DOTALL)
_SAMPLE_STYLE = re.compile(r'<c r="[A-Z]+(\d+)" s="(\d+)"')
_DIMENSION = re.compile(r'<dimension ref="[^"]*"/>')
_ESCAPED = re.compile(r"_x[0-9a-fA-F]{4}_")
"""A spreadsheet would show the character of this number."""
_LEVEL = 1  # of the compression: 6 takes several times as long


def fill_sheet(file: BinaryIO, made: BinaryIO, samples: Sequence[tuple[str, str]], blocks: Iterable[Block]) -> None:
    """The workbook `made` with all rows on its second sheet. There, a row for each of the samples, a column and a word,
    has the style of this word in this column; the rows come in their place."""
    with (
        zipfile.ZipFile(made) as source,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as target,
    ):
        for member in source.infolist():
            if member.filename != _SHEET:
                target.writestr(member, source.read(member), zipfile.ZIP_DEFLATED)
        with target.open(_SHEET, "w", force_zip64=True) as sheet:
            _write_sheet(sheet, source.read(_SHEET).decode("utf-8"), samples, blocks)


def _write_sheet(sheet: IO[bytes], text: str, samples: Sequence[tuple[str, str]], blocks: Iterable[Block]) -> None:
    found = _SAMPLES.search(text)
    assert found is not None, "xlsxwriter writes rows in another form"
    styles = dict(zip(samples, (style for _, style in _SAMPLE_STYLE.findall(found[0])), strict=True))
    form = _make_form(styles)
    sheet.write(_DIMENSION.sub("", text[: found.start()]).encode())
    for block in blocks:
        sheet.write("".join(f"<row>{line}</row>" for line in iter_lines(block, form)).encode())
    sheet.write(text[found.end() :].encode())


def _make_form(styles: Mapping[tuple[str, str], str]) -> LineForm:
    makers: dict[str, Callable[[Any], str]] = {
        name: partial(_make_styled, {word: style for (column, word), style in styles.items() if column == name})
        for name in COLUMNS
        if any(column == name for column, _ in styles)
    }
    return LineForm(_make_xml, "", makers=makers, number="<c><v>%r</v></c>")


def _make_styled(styles: Mapping[str, str], value: Any) -> str:
    style = styles.get(value)
    return _make_xml(value) if style is None else _make_xml(value).replace("<c ", f'<c s="{style}" ', 1)


def _make_xml(value: Any) -> str:
    """One cell: a number as a number, a truth value as one, everything else as text."""
    cell = make_cell(value)
    if cell is None:
        return "<c/>"
    if isinstance(cell, bool):
        return f'<c t="b"><v>{int(cell)}</v></c>'
    if isinstance(cell, float) or (isinstance(cell, int) and abs(cell) <= MAX_EXACT_INTEGER):
        return f"<c><v>{cell!r}</v></c>"
    text = _ESCAPED.sub(r"_x005F\g<0>", make_plain(str(cell)))
    return f'<c t="inlineStr"><is><t xml:space="preserve">{escape(text)}</t></is></c>'


def make_plain(text: str) -> str:
    """xlsxwriter takes `<r>…</r>` for markup that is already made, and would not escape it."""
    short = shorten(clean(text), _MAX_TEXT)
    return f"'{short}" if short.startswith("<r>") else short
