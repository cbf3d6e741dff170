"""The writer appends: what is recorded reaches its file at every flush, and the cost of a record does not depend on how
many came before.

A file grows as `dump.json.part`, which is dump.json without its end. `close` writes the end, syncs and renames. What
comes later in the same step (a backward, another start) takes the end off again and goes on. stack.json groups the
calls by stack, which cannot be appended to: its part is a journal, and the file is made from it when it is closed.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tensorprobe.store import layout
from tensorprobe.store.encode import encode_entry

logger = logging.getLogger("tensorprobe")


class AppendedObject:
    """A JSON object that is written one entry a line."""

    def __init__(self, path: Path, header: str, footer: str) -> None:
        self._path = path
        self._part = path.with_name(path.name + layout.PART_SUFFIX)
        self._header = header.encode()
        self._footer = f"\n{footer}\n".encode()
        self._descriptor: int | None = None
        self._is_begun = False

    @property
    def is_begun(self) -> bool:
        """There is such a file, open or whole."""
        return self._is_begun

    def append(self, entries: Sequence[str]) -> None:
        """Add entries (`"key": value`, without a line break); opens the file, or opens it again, when needed."""
        descriptor = self._open()
        if entries:
            is_first = os.lseek(descriptor, 0, os.SEEK_END) == len(self._header)
            text = ",\n".join(entries)
            append_whole(descriptor, f"{'' if is_first else ','}\n{text}".encode())

    def close(self) -> None:
        """Make the file whole; nothing to do if it is."""
        if self._descriptor is None:
            return
        append_whole(self._descriptor, self._footer, syncs=True)
        os.close(self._descriptor)
        self._descriptor = None
        self._part.replace(self._path)

    def discard(self) -> None:
        """Remove the file."""
        self.abandon()
        self._part.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        self._is_begun = False

    def abandon(self) -> None:
        """Let go of the file without writing: what a forked child does."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None:
            is_there = self._is_begun and (self._path.exists() or self._part.exists())
            self._descriptor = self._reopen() if is_there else self._begin()
        return self._descriptor

    def _begin(self) -> int:
        layout.make_folder(self._path.parent)
        descriptor = layout.open_private(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(descriptor, self._header)
        except OSError:  # entries without a header could not be read: begin anew next time
            os.close(descriptor)
            self._part.unlink(missing_ok=True)
            raise
        self._is_begun = True
        return descriptor

    def _reopen(self) -> int:
        """Take the end off again."""
        if self._path.exists():
            self._path.replace(self._part)
        descriptor = layout.open_private(self._part, os.O_WRONLY)
        end = os.lseek(descriptor, 0, os.SEEK_END) - len(self._footer)
        os.ftruncate(descriptor, end)
        os.lseek(descriptor, end, os.SEEK_SET)
        return descriptor


class StackFile:
    """stack.json: each distinct stack once, with the calls that have it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(path.name + layout.PART_SUFFIX)
        self._descriptor: int | None = None
        self._numbers: dict[int, int] = {}
        self._texts: dict[tuple[str, ...], int] = {}
        self._lines: list[str] = []
        self._is_stale = True

    def add(self, name: str, stack_id: int, frames: Sequence[str]) -> None:
        """Note that the call `name` has this stack. Two positions in one line are two stacks with one text."""
        number = self._numbers.get(stack_id)
        if number is None:
            number = self._numbers[stack_id] = self._number(tuple(frames))
        self._lines.append(f'["call", {number}, {json.dumps(name)}]')

    def _number(self, frames: tuple[str, ...]) -> int:
        number = self._texts.get(frames)
        if number is None:
            number = self._texts[frames] = len(self._texts)
            self._lines.append(json.dumps(["stack", number, frames]))
        return number

    def flush(self) -> None:
        """Bring the journal to its file."""
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        try:
            if self._descriptor is None:
                self._descriptor = layout.open_private(self._part, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            append_whole(self._descriptor, ("\n".join(lines) + "\n").encode())
        except BaseException:
            self._lines = [line for line in lines if line.startswith('["stack"')]  # later calls may have them too
            raise
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

    def discard(self) -> None:
        """Remove the file."""
        self.abandon()
        self._part.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)

    def abandon(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class RankWriter:
    """All files of one step of one process."""

    def __init__(self, folder: Path, header: dict[str, Any], *, has_construct: bool, has_extra: bool) -> None:
        self.folder = folder
        opening = json.dumps(header)[:-1] + ', "data": {'
        self._dump = AppendedObject(folder / layout.DUMP_FILE, opening, "}}")
        self._debug = AppendedObject(folder / layout.DEBUG_FILE, opening, "}}")
        self._construct = AppendedObject(folder / layout.CONSTRUCT_FILE, "{", "}")
        self._stack = StackFile(folder / layout.STACK_FILE)
        self._has_construct = has_construct
        self._has_extra = has_extra

    def open(self, run: dict[str, Any]) -> None:
        """Take the folder over from an earlier run, and say in run.json whose it is now."""
        if layout.clear_folder(self.folder):
            logger.warning("%s held an earlier dump, which is replaced", self.folder)
        write_run(self.folder, run)

    def append_records(self, records: Iterable[tuple[str, Any]]) -> None:
        """Add calls to dump.json; also opens it when there are none."""
        self._dump.append([encode_entry(name, fields) for name, fields in records])

    def append_debug(self, records: Iterable[tuple[str, Any]]) -> None:
        """Add single points to debug.json."""
        self._debug.append([encode_entry(name, tree) for name, tree in records])

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
        """Make every file whole, and write run.json beside them. One that fails does not keep the others open."""
        actions = [self._dump.close, self._construct.close, self._debug.close]
        if self._has_extra and self._dump.is_begun:
            actions.append(self._stack.finish if is_finished else self._stack.close)
        run_all([*actions, lambda: write_run(self.folder, run)])

    def discard(self) -> None:
        """Remove every file again, and the folders if nothing else is in them."""
        run_all([file.discard for file in (self._dump, self._debug, self._construct, self._stack)])
        (self.folder / layout.RUN_FILE).unlink(missing_ok=True)
        layout.remove_empty_folders(self.folder)

    def abandon(self) -> None:
        """Let go of the files without writing: what a forked child does."""
        for file in (self._dump, self._debug, self._construct, self._stack):
            file.abandon()


def write_run(folder: Path, run: dict[str, Any]) -> None:
    """run.json, the circumstances: replaced as a whole, because it is small."""
    layout.make_folder(folder)
    write_whole(folder / layout.RUN_FILE, json.dumps(run, indent=1, default=str, allow_nan=False) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file aside and rename it: it is there whole or not at all."""
    temporary = layout.temporary_path(path)
    try:
        descriptor = layout.open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def run_all(actions: Iterable[Callable[[], None]]) -> None:
    """Run each of them; the first failure is raised when all have run."""
    failures: list[OSError] = []
    for action in actions:
        try:
            action()
        except OSError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def append_whole(descriptor: int, data: bytes, *, syncs: bool = False) -> None:
    """Append all of it or, on a full disk or Ctrl-C, nothing: half a line would spoil what follows."""
    end = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        write_all(descriptor, data)
        if syncs:
            os.fsync(descriptor)
    except BaseException:
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
        kind, number, content = json.loads(line)
        if kind == "stack":
            frames[number] = json.dumps(content)
        else:
            calls.setdefault(number, []).append(content)
    entries = [f'"{number}": [{json.dumps(names)}, {frames[number]}]' for number, names in calls.items()]
    return "{\n" + ",\n".join(entries) + "\n}\n" if entries else "{}\n"
