"""Dumps of other tools, as one side of a comparison. Each has one file here, which finds what is its own at a path and
says it in records; docs/reader.md shows how a further one is written."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from tensorprobe.errors import DumpError
from tensorprobe.store import stored_file
from tensorprobe.store.foreign import debug_mode, safetensors, sglang, sglang_dumper
from tensorprobe.store.foreign.step import ForeignStep, Records

__all__ = ["READERS", "ForeignFile", "ForeignStep", "find_foreign"]

READERS = (safetensors.find, sglang.find, sglang_dumper.find, debug_mode.find)


def find_foreign(path: Path) -> list[ForeignStep]:
    """What another tool has written there; empty where it is a dump of ours, or nothing that is known."""
    for find in READERS:
        found = find(path)
        if found:
            return found
    return []


class ForeignFile:
    """What a dump.json, or with `is_saved` a debug.json, would say; read when something is first asked of it."""

    is_part = False
    is_complete = True
    has_bad_lines = False
    problems: tuple[str, ...] = ()

    def __init__(self, step: ForeignStep, *, is_saved: bool) -> None:
        self._step = step
        self._is_saved = is_saved
        self.path: Path = step.path
        self.header: dict[str, Any] = {"level": "L0", "framework": "pytorch", **step.header}

    @property
    def size_bytes(self) -> int:
        return stored_file.size_bytes(self.path)

    def __len__(self) -> int:
        return len(self._records)

    def __bool__(self) -> bool:
        """A file without entries is still a file."""
        return True

    def names(self) -> Iterator[str]:
        return iter(self._records)

    def items(self) -> Iterator[tuple[str, Any]]:
        return iter(self._records.items())

    def get(self, name: str) -> Any:
        return self._records[name]

    def place(self, name: str) -> int | None:
        """The order of its records is the order of its calls."""
        return list(self._records).index(name) if name in self._records else None

    @cached_property
    def _records(self) -> Records:
        try:
            records, saved = self._step.read()
        except (OSError, ValueError, RecursionError) as error:
            raise DumpError(f"{stored_file.show(self.path)} cannot be read ({error}).") from error
        return saved if self._is_saved else records
