"""The tree of rows as lines of cells: what stands in which column, before anything is coloured or aligned.

Without a filter a call has one line for each of its results, since its inputs are the results of calls above it. With a
filter it has one line for every tensor and argument.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tensorprobe.model.record import Number
from tensorprobe.report.escape import shorten
from tensorprobe.report.nonfinite import describe_counts
from tensorprobe.report.tree import Row
from tensorprobe.run.call import Call
from tensorprobe.store.slot import PlainSlot, Slot, TensorSlot

COLUMNS = ("shape", "norm", "max", "min", "mean", "NaN, Inf", "dtype", "slot", "checksum", "")
"""After the column of the tree; the last one is for remarks. What matters stands where a narrow window keeps it."""
NUMERIC_COLUMNS = range(1, 5)
SLOT_COLUMN = COLUMNS.index("slot")
"""Up to this one they should fit into the window of a terminal."""

Mark = Literal["heading", "place", "nan", "inf", "failed", "aside", ""]
Guides = tuple[str, str, str, str]

UNICODE_GUIDES: Guides = ("├─ ", "└─ ", "│  ", "   ")
ASCII_GUIDES: Guides = ("|- ", "`- ", "|  ", "   ")
NARROW_GUIDES: dict[Guides, Guides] = {
    UNICODE_GUIDES: ("├ ", "└ ", "│ ", "  "),
    ASCII_GUIDES: ("|-", "`-", "| ", "  "),
}
_DIGITS, _NARROW_DIGITS = 5, 3
_SHORT_DTYPE = re.compile(r"^(bfloat|float|uint|int|complex)(?=\d)")
_SHORT_WORDS = {"bfloat": "bf", "float": "f", "uint": "u", "int": "i", "complex": "c"}

_MAX_GUIDES = 200
"""Rows that lie deeper stand at this level: every line begins with a mark for each level around it."""
_MAX_NUMBER_TEXT = 12
_MAX_VALUE_TEXT = 60
_MAX_SHAPE_TEXT = 40


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table."""

    guide: str
    label: str
    cells: tuple[str, ...]
    mark: Mark = ""


def iter_lines(
    rows: Sequence[Row], guides: Guides, details: Mapping[str, str] | None, *, is_narrow: bool = False
) -> Iterator[Line]:
    """Every row as one or more lines, with a heading where the direction changes.

    `details` are the source lines of the records; None: one line for each result, and no source lines.
    `is_narrow`: with fewer digits, and dtypes as `bf16`.
    """
    open_levels: list[bool] = []
    heading = ""
    for row in rows:
        if row.depth == 0 and _heading_of(row, heading) != heading:
            heading = _heading_of(row, heading)
            yield Line("", heading, COLUMNS, "heading")
        del open_levels[row.depth :]
        before = "".join(guides[2] if is_open else guides[3] for is_open in open_levels[1:_MAX_GUIDES])
        branch = (guides[1] if row.is_last else guides[0]) if row.depth else ""
        open_levels.append(not row.is_last)
        inside = guides[2] if open_levels[-1] else guides[3]
        below = before + (inside if row.depth else "")
        made = _row_lines(row, before + branch, below, details is not None)
        yield from map(_narrow, made) if is_narrow else made
        if details is not None and row.record in details and not row.is_context:
            yield Line(below, details[row.record], (), "place")


def _heading_of(row: Row, before: str) -> str:
    """An optimizer's calls are forward calls, but nobody looks for them under that word."""
    if row.kind == "saved":
        return "saved values"
    if row.call and _own_caller(row) and row.direction != before:
        return row.call.caller or ""
    return row.direction or "other records"


def _own_caller(row: Row) -> str | None:
    """The part of the framework that made a call for itself. A module that it calls, as DistributedDataParallel does,
    is the user's."""
    return row.call.caller if row.call and row.kind not in ("module", "gradients") else None


def format_number(number: Number) -> str:
    """Five digits: enough to see by eye, short enough for a column."""
    if number is None:
        return ""
    if isinstance(number, float):
        return f"{number:.{_DIGITS}g}"
    text = str(number)
    return shorten(text, _MAX_NUMBER_TEXT)


def format_shape(shape: tuple[int, ...] | None) -> str:
    """`[4, 128, 256]`"""
    return "" if shape is None else shorten(str(list(shape)), _MAX_SHAPE_TEXT)


def format_value(slot: PlainSlot) -> str:
    """An argument that is no tensor."""
    return "None" if slot.value is None else shorten(_plain(slot.value), _MAX_VALUE_TEXT)


def _narrow(line: Line) -> Line:
    """The numbers of a line are read again from its cells: what is long in them is digits."""
    cells = list(line.cells)
    for column in NUMERIC_COLUMNS:
        cells[column] = _cut_digits(cells[column])
    dtype = COLUMNS.index("dtype")
    cells[dtype] = _SHORT_DTYPE.sub(lambda found: _SHORT_WORDS[found[1]], cells[dtype])
    shape = COLUMNS.index("shape")
    cells[shape] = cells[shape].replace(", ", ",")
    return replace(line, cells=tuple(cells))


def _cut_digits(text: str) -> str:
    try:
        return f"{float(text):.{_NARROW_DIGITS}g}" if len(text) > _NARROW_DIGITS + 2 else text
    except ValueError:  # True, None, an argument in words
        return text


def _row_lines(row: Row, guide: str, below: str, has_details: bool) -> Iterator[Line]:
    label = (row.record if has_details else row.label) + _describe_hidden(row)
    slots = _shown_slots(row, has_details)
    remarks = _describe_row(row)
    if not slots:
        is_aside = row.call is None or row.is_context or row.kind == "folded"
        mark: Mark = "aside" if is_aside else "failed" if row.call and row.call.failed else ""
        yield Line(guide, label, _empty_cells(remarks), mark)
        return
    for index, slot in enumerate(slots):
        cells, slot_mark = _slot_cells(slot, "" if index else remarks)
        is_aside = _own_caller(row) is not None
        mark = slot_mark or ("failed" if row.call and row.call.failed else "aside" if is_aside else "")
        yield Line(below if index else guide, "" if index else label, cells, mark)


def _shown_slots(row: Row, has_details: bool) -> tuple[Slot, ...]:
    if row.call is None or row.is_context or row.kind == "folded":
        return ()
    if has_details:
        return row.call.slots
    tensors = tuple(slot for slot in row.call.results if isinstance(slot, TensorSlot))
    if len(tensors) == 1 and tensors[0].slot == "output.0":
        return (replace(tensors[0], slot=""),)
    return tensors or tuple(slot for slot in row.call.results[:1] if not _is_none(slot))


def _is_none(slot: Slot) -> bool:
    return isinstance(slot, PlainSlot) and slot.value is None


def _slot_cells(slot: Slot, remarks: str) -> tuple[tuple[str, ...], Mark]:
    if isinstance(slot, PlainSlot):
        return _plain_cells(slot, remarks), ""
    said = [slot.reason, slot.note, f"from {slot.source}" if slot.source and slot.is_input else None, remarks]
    numbers = (format_number(number) for number in (slot.norm, slot.max, slot.min, slot.mean))
    dtype = (slot.dtype or "").removeprefix("torch.").removeprefix("mindspore.")
    mark: Mark = "nan" if slot.has_nan else "inf" if slot.has_inf else ""
    counts = describe_counts(slot)
    if slot.is_undefined:
        mark, counts = "", ""
    remark = " · ".join(dict.fromkeys(filter(None, said)))
    return (format_shape(slot.shape), *numbers, counts, dtype, slot.slot, slot.checksum or "", remark), mark


def _plain_cells(slot: PlainSlot, remarks: str) -> tuple[str, ...]:
    """Numbers stand among the numbers, everything longer among the remarks."""
    value = format_value(slot)
    is_short = len(value) <= _MAX_NUMBER_TEXT
    said = " · ".join(filter(None, ["" if is_short else value, remarks]))
    kind = "" if slot.value is None else slot.type
    return ("", "", value if is_short else "", "", "", "", kind, slot.slot, "", said)


def _describe_row(row: Row) -> str:
    if row.kind == "absent":
        return "no record"
    call = row.call
    if call is None or row.is_context:
        return ""
    if row.kind == "folded":
        return f"{call.caller} · --filter {call.caller} shows them"
    said = [f"failed: {call.failed}" if call.failed else None, call.note, _own_caller(row)]
    return " · ".join(filter(None, [*said, _describe_recomputation(call)]))


def _describe_recomputation(call: Call) -> str | None:
    if not call.is_recomputed:
        return None
    slots = ", ".join(call.differs_from_forward)
    return f"RECOMPUTED DIFFERENTLY: {slots}" if slots else "recomputed"


def _describe_hidden(row: Row) -> str:
    return f"  (+{row.hidden_count:,})" if row.hidden_count and row.kind != "folded" else ""


def _empty_cells(remarks: str) -> tuple[str, ...]:
    return (*[""] * (len(COLUMNS) - 1), remarks)


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    try:
        return repr(value) if isinstance(value, str) else str(value)
    except RecursionError:
        return "…"
