"""A page out of a saved comparison: compare.json holds all of it, and neither dump is opened again.

The file may come from anyone. What it says is only ever text and numbers in the page.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from tensorprobe.compare.row import COLUMNS, Row
from tensorprobe.errors import DumpError
from tensorprobe.regular_file import open_regular
from tensorprobe.report.page.comparison import VERSION, add_rows

JSON_FILE, CSV_FILE, TRUTH_FILE = "compare.json", "compare.csv", "truth.json"
_HOW = "Write it with: tensorprobe compare REFERENCE CANDIDATE -o DIR --files csv,html,json"
_TUPLES = frozenset(field.name for field in fields(Row) if "tuple" in str(field.type))
_TEXTS = frozenset(field.name for field in fields(Row) if "str" in str(field.type))
_PARTS: dict[str, type] = {
    "reference": str,
    "candidate": str,
    "verdict": dict,
    "calls": dict,
    "places": list,
    "strings": list,
    "row_calls": list,
    "row_places": list,
}


def find_saved(path: Path) -> Path | None:
    """The compare.json that is meant by a path; None where it is no saved comparison. DumpError where a comparison was
    saved without it."""
    if path.is_dir():
        if (path / JSON_FILE).is_file():
            return path / JSON_FILE
        if (path / CSV_FILE).is_file():
            raise DumpError(f"{path} has {CSV_FILE}, but no {JSON_FILE}, which a report is made of. {_HOW}")
        if (path / TRUTH_FILE).is_file():
            raise DumpError(_describe_truth(path / TRUTH_FILE))
        return None
    if path.name == TRUTH_FILE and path.is_file():
        raise DumpError(_describe_truth(path))
    if path.suffix == ".csv":
        raise DumpError(f"{path}: a report is made of {JSON_FILE}, which has more than this table. {_HOW}")
    return path if path.name == JSON_FILE or _is_comparison(path) else None


def build_saved_page(path: Path) -> dict[str, Any]:
    """The document of the comparison in this file."""
    try:
        with open_regular(path) as file:
            content = json.load(file)
    except OSError as error:
        raise DumpError(f"{path} cannot be read ({error.strerror or error}).") from error
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{path} is not what `tensorprobe compare` writes: it is no JSON ({error}).") from error
    head = content.get("page") if isinstance(content, dict) else None
    if not isinstance(head, dict):
        raise DumpError(f"{path} was printed by --json, or written by an earlier version: it has no page. {_HOW}")
    rows = content.get("rows")
    if not _is_whole(head, rows):
        raise DumpError(f"{path} is damaged, or of another version than {VERSION}. {_HOW}")
    try:
        return add_rows(head, [{name: _read_column(name, rows) for name in COLUMNS}])
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise DumpError(f"{path} is damaged ({type(error).__name__}: {error}). {_HOW}") from error


def _describe_truth(path: Path) -> str:
    page = path.parent / "report.html"
    where = f"Its page is {page}" if page.is_file() else "Its page was written beside it, and is gone"
    return (
        f"{path} is what `tensorprobe truth` found of one run, and no page is made of it. {where}. "
        "To make it again: tensorprobe truth DUMP -o DIR"
    )


def _is_comparison(path: Path) -> bool:
    """One that was renamed; a dump.json begins otherwise."""
    try:
        with open_regular(path) as file:
            return file.read(64).startswith(b'{"tensorprobe"')
    except OSError:
        return False


def _is_whole(head: dict[str, Any], rows: Any) -> bool:
    has_parts = all(isinstance(head.get(name), kind) for name, kind in _PARTS.items())
    is_table = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    if head.get("version") != VERSION or not has_parts or not is_table:
        return False
    columns = head["calls"].values()
    if not columns or any(not isinstance(one, list) for one in columns) or len({len(one) for one in columns}) > 1:
        return False
    has_texts = all(isinstance(text, str) for text in (*head["strings"], *head["places"]))
    return has_texts and len(rows) == len(head["row_calls"]) == len(head["row_places"])


def _read_column(name: str, rows: list[dict[str, Any]]) -> list[Any]:
    return [_read_value(name, row.get(name)) for row in rows]


def _read_value(name: str, value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if name in _TUPLES and isinstance(value, list):
        return tuple(value)
    is_number = isinstance(value, (bool, int, float)) and name not in _TEXTS | _TUPLES
    return value if is_number else str(value)
