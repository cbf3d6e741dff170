"""dump.json or debug.json, complete or a part, ours or msprobe's: entries by name and in order.

One entry is in memory at a time where the file has one entry a line, as ours have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tensorprobe.errors import DumpError
from tensorprobe.store import journal, layout, stored_file


@dataclass(frozen=True)
class RecordFile:
    """Read lazily: the file is first touched when something is asked of it."""

    path: Path
    types: journal.Types

    @property
    def is_part(self) -> bool:
        return self.path.name.endswith(layout.PART_SUFFIX)

    @property
    def size_bytes(self) -> int:
        return stored_file.size_bytes(self.path)

    @property
    def is_complete(self) -> bool:
        """All that was written to the file is here."""
        if not self.is_part:
            return True
        outline = self._outline
        return outline is not None and outline.is_closed and not outline.bad_lines

    @property
    def has_bad_lines(self) -> bool:
        """Lines before the last cannot be read: what they held is not known."""
        return self._outline is not None and bool(self._outline.bad_lines)

    @property
    def header(self) -> Mapping[str, Any]:
        """task, level, framework …; empty when it was cut off."""
        if not self.is_part and self._first_line:
            return self._first_line
        if self._outline is None:
            return self._whole[0]
        return self._outline.header or {}

    def forget(self) -> None:
        """Frees the memory of what was read: it is read again when somebody asks."""
        for name in ("_outline", "_whole"):
            self.__dict__.pop(name, None)

    @property
    def problems(self) -> tuple[str, ...]:
        """What a reader must know about the state of the file, in words."""
        if self._outline is None or not self.is_part:
            return ()
        found = []
        if self._outline.header is None:
            found.append(f"{self.path.name}: its first line was cut off, so task and level are unknown")
        elif self._outline.is_cut:
            found.append(f"{self.path.name}: its last line was cut off and is left out")
        if self._outline.bad_lines:
            found.append(f"{self.path.name}: {_count_lines(self._outline.bad_lines)} cannot be read and is left out")
        return tuple(found)

    def __len__(self) -> int:
        return len(self._whole[1] if self._outline is None else self._outline.offsets)

    def __bool__(self) -> bool:
        """A file without entries is still a file."""
        return True

    def items(self) -> Iterator[tuple[str, Any]]:
        """All entries in the order in which they were written."""
        if self._outline is None:
            return iter(self._whole[1].items())
        return journal.iter_entries(self.path, self._outline, self.types)

    def place(self, name: str) -> int | None:
        """How many entries were written before this one; None where the file does not tell."""
        return self._outline.places.get(name) if self._outline is not None else None

    def get(self, name: str) -> Any:
        """One entry; KeyError when it is not there."""
        if self._outline is None:
            return self._whole[1][name]
        return journal.read_entry(self.path, self._outline, name, self.types)

    @cached_property
    def _first_line(self) -> dict[str, Any]:
        """The header, where it is a line of its own; there may be thousands of files of which only that is asked."""
        return journal.read_header(self.path) or {}

    @cached_property
    def _outline(self) -> journal.Outline | None:
        if self.is_part:
            return journal.outline_part(self.path, self.types)
        found = journal.outline_whole(self.path)
        # A lone `{` also opens msprobe's indented files, whose lines are no entries.
        return found if found is not None and found.header else None

    @cached_property
    def _whole(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Header and entries of a file that is not one entry a line."""
        content = load_whole(self.path)
        header: dict[str, Any] = {}
        if isinstance(content.get("data"), dict):
            header, content = content, content["data"]
            del header["data"]
        for name, value in content.items():
            if not isinstance(value, self.types):
                kind = type(value).__name__
                raise DumpError(f"{self.path}: the entry {name!r} is {kind}, not a record. Is this a dump?")
        return header, content


def load_whole(path: Path) -> dict[str, Any]:
    """A JSON object in any layout, at once."""
    try:
        with journal.open_for_reading(path) as file:
            data = file.read()
    except OSError as error:
        raise DumpError(f"{path} cannot be read ({error.strerror or error}). Copy the dump to another disk.") from error
    try:
        content = journal.parse_json(data, path)
    except ValueError as error:
        raise DumpError(
            f"{path} is not whole ({error}). Copy it again from where it was made; "
            f"to read what is in it, rename it to {path.name}{layout.PART_SUFFIX}."
        ) from error
    if not isinstance(content, dict):
        raise DumpError(f"{path} holds a {type(content).__name__}, not an object. Is this a dump?")
    return content


def _count_lines(numbers: tuple[int, ...]) -> str:
    if len(numbers) == 1:
        return f"line {numbers[0]}"
    return f"each of {len(numbers)} lines (the first is line {numbers[0]})"
