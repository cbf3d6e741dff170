"""The lines of a source file around a recorded line, if that file is still there and still says the same.

A dump names the file, and a dump may come from anyone: nothing of a file is shown unless the recorded text stands at
the recorded line of a Python file. Otherwise the recorded line is all there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorprobe.foreign_text import shorten
from tensorprobe.regular_file import open_regular

_NEIGHBOURS = 5
_MAX_BYTES = 2 << 20
_MAX_LINE = 400
_SUFFIX = ".py"


@dataclass(frozen=True)
class Frame:
    """One line of a stack, taken apart."""

    file: str
    line: int
    code: str


def read_frame(frame: str) -> Frame | None:
    """`File model.py, line 18, in forward, \\n x = self.fc(x)`; None for one of another form."""
    head, _, code = frame.partition("\n")
    start, _, _ = head.rstrip().removesuffix(",").rpartition(", in ")
    file, _, line = start.rpartition(", line ")
    if not file.startswith("File ") or not (line.isascii() and line.isdecimal()) or len(line) > len(str(_MAX_BYTES)):
        return None
    return Frame(file.removeprefix("File "), int(line), code.strip())


def find_source(frame: str | None) -> dict[str, Any] | None:
    """The file, the number of the line, that of the first one that is shown, and the lines; None where only the
    recorded line is known."""
    found = read_frame(frame) if frame else None
    if found is None or not found.code or not found.file.endswith(_SUFFIX):
        return None
    lines = _read_lines(found.file)
    if not 0 < found.line <= len(lines) or lines[found.line - 1].strip() != found.code:
        return None
    first = max(1, found.line - _NEIGHBOURS)
    shown = lines[first - 1 : found.line + _NEIGHBOURS]
    return {
        "file": Path(found.file).name,
        "line": found.line,
        "first": first,
        "lines": [shorten(line, _MAX_LINE) for line in shown],
    }


def _read_lines(path: str) -> list[str]:
    """None of a file that cannot be read, is too large, or is no text."""
    try:
        with open_regular(path) as file:
            content = file.read(_MAX_BYTES + 1)
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    return [] if len(content) > _MAX_BYTES or "\0" in text else text.split("\n")
