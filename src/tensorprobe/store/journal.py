"""JSON objects that are written one entry a line, whole or cut off.

    {"task": "statistics", …, "data": {      the header; in construct.json only {
    "Functional.linear.0.forward": {…},
    "Functional.linear.0.backward": {…}
    }}                                       the closing; missing while a run writes and after a kill

A file may come from anyone and may end anywhere, in the middle of a character too. Lines are therefore taken as bytes,
and only a line that is a whole entry counts. Files in another layout (msprobe's, a hand-made one) are recognised, and
left to the caller.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tensorprobe.errors import DumpError
from tensorprobe.regular_file import open_regular
from tensorprobe.store import stored_file

Types = tuple[type, ...]

RECORD_TYPES: Types = (dict,)
SAVED_TYPES: Types = (dict, list, type(None))
PARENT_TYPES: Types = (str, type(None))

_KEY = re.compile(rb'\s*("[^"\\]*(?:\\.[^"\\]*)*")\s*:')
_HEADER_LIMIT_BYTES = 2**20
_USUAL_NESTING = 16
_LARGE_BYTES = 2**20
_NO_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))
_MAX_NESTING = 500
"""Beyond this no file is a dump. Python's own limit is another one in every version and at every place of its stack;
below this one, whatever is made of a file (its text, a comparison, JSON again) has room for it."""
_ENDS_OF_VALUES = (b"}", b"]", b'"', b"null")
_CLOSINGS = (b"}", b"}}")


@dataclass(frozen=True)
class Outline:
    """Where the entries of a file begin, and what is wrong with it. A repeated key counts at its last place."""

    header: dict[str, Any] | None
    """None when the header itself was cut or spoilt."""
    offsets: dict[str, int]
    is_closed: bool
    is_cut: bool
    """The last line is not whole."""
    bad_lines: tuple[int, ...]
    """Other lines that cannot be read, counted from 1."""
    places: dict[str, int]
    """How many entries were written before each, also those that a later one of the same key has replaced."""


def parse_json(data: bytes, path: Path) -> Any:
    """JSON in the dialect of this format; ValueError when it is none, DumpError when it is nested beyond all reason."""
    try:
        content = json.loads(data.decode("utf-8"))
        may_be_deep = len(data) > _LARGE_BYTES or data.count(b"[") + data.count(b"{") > _MAX_NESTING
        is_too_deep = may_be_deep and not _is_surely_flat(data) and _is_nested_beyond(content, _MAX_NESTING)
    except RecursionError:
        is_too_deep = True
    if is_too_deep:
        raise DumpError(f"{path} is nested too deeply to be a dump. Do not trust it; make the dump again.")
    return content


def _is_surely_flat(data: bytes) -> bool:
    """Of nearly every file, at once: its brackets are taken away from the inside, two levels at a time. Quotation marks
    go in pairs, so a bracket inside a text never takes one outside with it; a text that has one alone stays."""
    if b"\\" in data:
        return False
    left = data.translate(None, _NO_STRUCTURE)
    for _ in range(_USUAL_NESTING):
        left = left.replace(b'""', b"").replace(b"[]", b"").replace(b"{}", b"")
        if not left:
            return True
    return False


def _is_nested_beyond(content: Any, depth: int) -> bool:
    """Level by level, because Python's stack may end before the nesting does."""
    level = [content] if isinstance(content, (dict, list)) else []
    while level and depth >= 0:
        depth -= 1
        level = [
            item
            for node in level
            for item in (node.values() if type(node) is dict else node)
            if type(item) is dict or type(item) is list  # faster than isinstance, and JSON has no others
        ]
    return bool(level)


def parse_entry(line: bytes, types: Types, path: Path) -> tuple[str, Any]:
    """The key and the value of one line; ValueError when the line is not exactly one whole entry."""
    parsed = parse_json(b"{" + strip_line(line) + b"}", path)
    if len(parsed) != 1:
        raise ValueError("not one entry")
    key, value = next(iter(parsed.items()))
    if not isinstance(value, types):
        raise ValueError(f"the value is {type(value).__name__}")
    return key, value


def strip_line(line: bytes) -> bytes:
    """An entry without its line break and its comma."""
    line = line.strip()
    return line[:-1].rstrip() if line.endswith(b",") else line


def parse_header(line: bytes, path: Path) -> dict[str, Any] | None:
    """The fields before `"data": {`; an empty header is `{`. None when this line is no header."""
    line = line.strip()
    if line == b"{":
        return {}
    try:
        header = parse_json(line + b"}}", path)
    except ValueError:
        return None
    if not isinstance(header, dict) or header.pop("data", None) != {}:
        return None
    return header


def outline_part(path: Path, types: Types) -> Outline:
    """Read a file that may be cut anywhere; every line is checked."""
    header: dict[str, Any] | None = None
    offsets: dict[str, int] = {}
    places: dict[str, int] = {}
    count = 0
    bad_lines: list[int] = []
    is_closed, is_cut = False, False
    for number, offset, line in iter_lines(path):
        if number == 1:
            header = parse_header(line, path)
            is_cut = header is None and not line.endswith(b"\n")
            continue
        if not line.strip() or line.strip() in _CLOSINGS:
            is_closed = is_closed or bool(line.strip())
            continue
        is_closed = False
        try:
            key, _ = parse_entry(line, types, path)
        except ValueError:
            is_cut = not line.endswith(b"\n")
            if not is_cut:
                bad_lines.append(number)
            continue
        offsets.pop(key, None)
        offsets[key], places[key] = offset, count
        count += 1
    return Outline(header, offsets, is_closed, is_cut, tuple(bad_lines), places)


def read_header(path: Path) -> dict[str, Any] | None:
    """What the first line of a file says; None when the header is not one line."""
    line = next((line for _, _, line in iter_lines(path, first_limit=_HEADER_LIMIT_BYTES)), b"")
    return parse_header(line, path) if line.endswith(b"\n") else None


def outline_whole(path: Path) -> Outline | None:
    """Find the entries of a complete file without parsing their values; None when it is not one entry a line."""
    header: dict[str, Any] | None = None
    offsets: dict[str, int] = {}
    places: dict[str, int] = {}
    count = 0
    is_closed = False
    for number, offset, line in iter_lines(path, first_limit=_HEADER_LIMIT_BYTES):
        if number == 1:
            header = parse_header(line, path) if line.endswith(b"\n") else None
            if header is None:
                return None
        elif line.strip() in _CLOSINGS:
            is_closed = True
        elif line.strip():
            key = _key_of(line)
            if key is None or is_closed:
                return None
            offsets.pop(key, None)
            offsets[key], places[key] = offset, count
            count += 1
    return Outline(header, offsets, is_closed, False, (), places) if is_closed else None


def iter_lines(path: Path, first_limit: int = -1) -> Iterator[tuple[int, int, bytes]]:
    """Number (from 1), offset and bytes of every line; a first line beyond `first_limit` comes in pieces."""
    offset, number = 0, 1
    with open_for_reading(path) as file:
        line = _read_line(file, path, first_limit)
        while line:
            yield number, offset, line
            offset += len(line)
            number += 1
            line = _read_line(file, path)


def iter_entries(path: Path, outline: Outline, types: Types) -> Iterator[tuple[str, Any]]:
    """The entries in the order of the file, one in memory at a time."""
    with open_for_reading(path) as file:
        for key, offset in outline.offsets.items():
            file.seek(offset)
            yield key, _parse_known(_read_line(file, path), key, types, path)


def read_entry(path: Path, outline: Outline, key: str, types: Types) -> Any:
    """One entry by its key."""
    with open_for_reading(path) as file:
        file.seek(outline.offsets[key])
        return _parse_known(_read_line(file, path), key, types, path)


def open_for_reading(path: Path) -> BinaryIO:
    """A binary file; DumpError instead of OSError."""
    try:
        return open_regular(stored_file.bring(path))
    except OSError as error:
        raise DumpError(
            f"{stored_file.show(path)} cannot be opened ({error.strerror}). If a run is writing this dump, try again "
            "when it has ended."
        ) from error


def _read_line(file: BinaryIO, path: Path, limit: int = -1) -> bytes:
    try:
        return file.readline(limit)
    except OSError as error:  # a disk, or a network, that fails
        raise DumpError(f"{path} cannot be read ({error.strerror or error}). Copy the dump to another disk.") from error


def _parse_known(line: bytes, key: str, types: Types, path: Path) -> Any:
    try:
        return parse_entry(line, types, path)[1]
    except ValueError as error:
        raise DumpError(
            f"{path}: the entry {key!r} cannot be read ({error}). Copy the dump again from where it was made; "
            f"to read the rest of it, rename the file to {path.name}.part."
        ) from error


def _key_of(line: bytes) -> str | None:
    found = _KEY.match(line)
    if found is None or not strip_line(line).endswith(_ENDS_OF_VALUES):
        return None
    try:
        return str(json.loads(found.group(1).decode("utf-8")))
    except ValueError:
        return None
