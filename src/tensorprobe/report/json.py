"""What `show` says, for programs: strict JSON, in which NaN and Infinity are strings.

One document, written in pieces: a rank at a time, each record on a line of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring_ascii
from typing import Any

from tensorprobe.report.nonfinite import NonFiniteCall
from tensorprobe.report.rank import RankReport
from tensorprobe.report.tree import Row
from tensorprobe.store.slot import Slot, TensorSlot

_MAX_DEPTH = 64
_TENSOR_FIELDS = [
    "slot",
    "type",
    "dtype",
    "shape",
    "max",
    "min",
    "mean",
    "norm",
    "nan_count",
    "inf_count",
    "requires_grad",
    "checksum",
    "data_name",
    "source",
    "reason",
    "note",
    "is_input",
]


def iter_json(path: str, reports: Iterable[RankReport]) -> Iterator[str]:
    """The document, piece by piece."""
    yield f'{{"path": {encode(path)},\n"ranks": ['
    separator = "\n"
    for report in reports:
        yield separator
        yield from _iter_rank(report)
        separator = ",\n"
    yield "\n]}\n"


def encode(value: Any) -> str:
    """Strict JSON on one line; non-ASCII letters escaped, so that it passes every terminal and every file."""
    if type(value) is str:  # nearly all cells of a table
        return encode_basestring_ascii(value)
    return json.dumps(make_strict(value), allow_nan=False)


def encode_made(value: Any) -> str:
    """The same of what was made of plain values with short texts as keys: large, and looked through only if it must."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:  # a number that JSON lacks was left
        return encode(value)


def make_strict(value: Any, depth: int = 0) -> Any:
    """Numbers that JSON lacks become strings; what is nested beyond all reason is cut."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, complex):
        return str(value)
    if depth > _MAX_DEPTH and isinstance(value, (dict, list, tuple)):
        return "…"
    if isinstance(value, dict):
        return {str(key): make_strict(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [make_strict(item, depth + 1) for item in value]
    return value


def _iter_rank(report: RankReport) -> Iterator[str]:
    yield "{" + ",\n".join(f"{encode(key)}: {encode(value)}" for key, value in _describe_rank(report).items())
    for key, rows in (("records", report.rows), ("saved", report.saved_rows)):
        lines = ",\n".join(encode(_describe_row(row, report)) for row in rows)
        yield f',\n"{key}": [\n{lines}\n]' if lines else f',\n"{key}": []'
    yield "}"


def _describe_rank(report: RankReport) -> dict[str, Any]:
    return {
        "name": report.name,
        "folder": report.folder,
        "step": report.step,
        "rank": report.rank,
        "task": report.header.get("task"),
        "level": report.header.get("level"),
        "framework": report.header.get("framework"),
        "complete": report.is_complete,
        "ended": report.ending,
        "error": report.error,
        "recovered": report.is_recovered,
        "problems": report.problems,
        "record_count": report.record_count,
        "saved_count": report.saved_count,
        "coverage": report.coverage,
        "non_finite": [_describe_non_finite(found, report) for found in report.non_finite.calls],
        "failed": [_describe_failed(call.name, call.failed, report) for call in report.failed],
        "scalars": [{"record": record, "value": value} for record, value in report.scalars],
        "gradients": [{"parameter": found.parameter, "norm": found.norm} for found in report.gradients],
    }


def _describe_non_finite(found: NonFiniteCall, report: RankReport) -> dict[str, Any]:
    return {
        "record": found.call.name,
        "origins": dict(found.origins),
        "module_path": found.call.told_path,
        "location": report.locations.get(found.call.name),
        "slots": [_describe_slot(slot) for slot in found.slots],
    }


def _describe_failed(record: str, error: str | None, report: RankReport) -> dict[str, Any]:
    return {"record": record, "error": error, "location": report.locations.get(record)}


def _describe_row(row: Row, report: RankReport) -> dict[str, Any]:
    described: dict[str, Any] = {
        "record": row.record,
        "kind": row.kind,
        "direction": row.direction,
        "depth": row.depth,
        "parent": row.parent,
        "hidden_count": row.hidden_count,
    }
    if row.call is not None:
        described |= {
            "module_path": row.call.told_path,
            "failed": row.call.failed,
            "caller": row.call.caller,
            "recomputed": row.call.is_recomputed,
            "differs_from_forward": list(row.call.differs_from_forward),
            "note": row.call.note,
            "location": report.locations.get(row.record),
            "slots": [_describe_slot(slot) for slot in row.call.slots],
        }
    return described


def _describe_slot(slot: Slot) -> dict[str, Any]:
    if isinstance(slot, TensorSlot):
        return {field: getattr(slot, field) for field in _TENSOR_FIELDS}
    return {"slot": slot.slot, "type": slot.type, "value": slot.value, "is_input": slot.is_input}
