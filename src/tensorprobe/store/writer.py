"""The writer appends: what is recorded reaches its file at every flush, and the cost of a record does not depend on how
many came before.

A file grows as `dump.json.part`, which is dump.json without its end. `close` writes the end, syncs and renames. What
comes later in the same step (a backward, another start) takes the end off again and goes on. stack.json groups the
calls by stack, which cannot be appended to: its part is a journal, and the file is made from it when it is closed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tensorprobe.store import layout
from tensorprobe.store.encode import encode_entry


class AppendedObject:
    """A JSON object that is written one entry a line."""

    def __init__(self, path: Path, header: str, footer: str) -> None:
        self._path = path
        self._part = path.with_name(path.name + layout.PART_SUFFIX)
        self._header = header
        self._footer = f"\n{footer}\n".encode()
        self._descriptor: int | None = None
        self._has_entries = False
        self._is_begun = False

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    def append(self, entries: Sequence[str]) -> None:
        """Add entries (`"key": value`, without a line break); opens the file, or opens it again, when needed."""
        descriptor = self._open()
        if entries:
            text = ",\n".join(entries)
            append_whole(descriptor, f",\n{text}".encode() if self._has_entries else f"\n{text}".encode())
            self._has_entries = True

    def close(self) -> None:
        """Make the file whole; nothing to do if it is."""
        if self._descriptor is None:
            return
        write_all(self._descriptor, self._footer)
        os.fsync(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = None
        self._part.replace(self._path)

    def abandon(self) -> None:
        """Let go of the file without writing: what a forked child does."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None:
            if self._is_begun:
                self._reopen()
            else:
                self._begin()
        assert self._descriptor is not None
        return self._descriptor

    def _begin(self) -> None:
        layout.make_folder(self._path.parent)
        self._descriptor = layout.open_private(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        write_all(self._descriptor, self._header.encode())
        self._is_begun = True

    def _reopen(self) -> None:
        self._path.replace(self._part)
        self._descriptor = layout.open_private(self._part, os.O_WRONLY)
        end = os.lseek(self._descriptor, 0, os.SEEK_END) - len(self._footer)
        os.ftruncate(self._descriptor, end)
        os.lseek(self._descriptor, end, os.SEEK_SET)


class StackFile:
    """stack.json: each distinct stack once, with the calls that have it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(path.name + layout.PART_SUFFIX)
        self._descriptor: int | None = None
        self._known: set[int] = set()
        self._lines: list[str] = []
        self._is_stale = True

    def add(self, name: str, stack_id: int, frames: Sequence[str]) -> None:
        """Note that the call `name` has this stack."""
        if stack_id not in self._known:
            self._known.add(stack_id)
            self._lines.append(json.dumps(["stack", stack_id, list(frames)]))
        self._lines.append(f'["call", {stack_id}, {json.dumps(name)}]')

    def flush(self) -> None:
        """Bring the journal to its file."""
        if not self._lines:
            return
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._descriptor = layout.open_private(self._part, flags)
        lines, self._lines = self._lines, []
        append_whole(self._descriptor, ("\n".join(lines) + "\n").encode())
        self._is_stale = True

    def close(self) -> None:
        """Make stack.json from the journal. The journal stays until `finish`, because the step may go on."""
        self.flush()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if self._is_stale:
            journal = self._part.read_text() if self._part.exists() else ""
            write_whole(self._path, _render_stacks(journal.splitlines()))
            self._is_stale = False

    def finish(self) -> None:
        """The step is over: the journal is no longer needed."""
        self.close()
        self._part.unlink(missing_ok=True)

    def abandon(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class RankWriter:
    """All files of one step of one process."""

    def __init__(self, folder: Path, header: dict[str, Any], *, has_construct: bool, has_extra: bool) -> None:
        self.folder = folder
        self.replaced_earlier_run = layout.clear_folder(folder)
        opening = json.dumps(header)[:-1] + ', "data": {'
        self.dump = AppendedObject(folder / layout.DUMP_FILE, opening, "}}")
        self.debug = AppendedObject(folder / layout.DEBUG_FILE, opening, "}}")
        self._construct = AppendedObject(folder / layout.CONSTRUCT_FILE, "{", "}")
        self._stack = StackFile(folder / layout.STACK_FILE)
        self._has_construct = has_construct
        self._has_extra = has_extra

    def append_records(self, records: Iterable[tuple[str, Any]]) -> None:
        """Add calls to dump.json; also opens it when there are none."""
        self.dump.append([encode_entry(name, fields) for name, fields in records])

    def append_debug(self, records: Iterable[tuple[str, Any]]) -> None:
        """Add single points to debug.json."""
        self.debug.append([encode_entry(name, tree) for name, tree in records])

    def append_parents(self, parents: Iterable[tuple[str, str | None]]) -> None:
        """Add to construct.json; at L1 it stays `{}`."""
        if self._has_extra:
            entries = [encode_entry(name, parent) for name, parent in parents] if self._has_construct else []
            self._construct.append(entries)

    def add_stack(self, name: str, stack_id: int, frames: Sequence[str]) -> None:
        if self._has_extra:
            self._stack.add(name, stack_id, frames)

    def flush_stacks(self) -> None:
        if self._has_extra:
            self._stack.flush()

    def close(self, run: dict[str, Any], *, is_finished: bool) -> None:
        """Make every file whole, and write run.json beside them."""
        if self.dump.is_open:
            self.dump.close()
            self._construct.close()
            if self._has_extra:
                self._stack.close()
        self.debug.close()
        if is_finished and self._has_extra:
            self._stack.finish()
        write_run(self.folder, run)

    def abandon(self) -> None:
        for file in (self.dump, self.debug, self._construct, self._stack):
            file.abandon()


def write_run(folder: Path, run: dict[str, Any]) -> None:
    """run.json, the circumstances: replaced as a whole, because it is small."""
    layout.make_folder(folder)
    write_whole(folder / layout.RUN_FILE, json.dumps(run, indent=1, default=str, allow_nan=False) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file aside and rename it: it is there whole or not at all."""
    temporary = path.with_name(f".{path.name}{layout.TEMPORARY_SUFFIX}")
    descriptor = layout.open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(descriptor, text.encode("utf-8", "backslashreplace"))
    finally:
        os.close(descriptor)
    temporary.replace(path)


def append_whole(descriptor: int, data: bytes) -> None:
    """Append all of it or, on a full disk, nothing: half a line would spoil what follows."""
    end = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        write_all(descriptor, data)
    except OSError:
        os.ftruncate(descriptor, end)
        os.lseek(descriptor, end, os.SEEK_SET)
        raise


def write_all(descriptor: int, data: bytes) -> None:
    """os.write, until all of it is written."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _render_stacks(journal: Iterable[str]) -> str:
    frames: dict[int, str] = {}
    calls: dict[int, list[str]] = {}
    for line in journal:
        kind, stack_id, content = json.loads(line)
        if kind == "stack":
            frames[stack_id] = json.dumps(content)
        else:
            calls.setdefault(stack_id, []).append(content)
    entries = [f'"{stack_id}": [{json.dumps(names)}, {frames[stack_id]}]' for stack_id, names in calls.items()]
    return "{\n" + ",\n".join(entries) + "\n}\n" if entries else "{}\n"
