"""The writer appends: what is recorded reaches its file at every flush, and the cost of a record does not depend on how
many came before.

A file grows as `dump.json.part`, which is dump.json without its end. `close` writes the end, syncs and renames. What
comes later in the same step (a backward, another start) takes the end off again and goes on. stack.json groups the
calls by stack and has a file of its own.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from tensorprobe.store import layout
from tensorprobe.store.disk import append_whole, write_all, write_over, write_whole
from tensorprobe.store.encode import encode_entry
from tensorprobe.store.folder import Folder
from tensorprobe.store.own_name import is_own_name
from tensorprobe.store.stack_file import StackFile


class AppendedObject:
    """A JSON object that is written one entry a line."""

    def __init__(self, folder: Folder, name: str, header: str, footer: str) -> None:
        self._folder = folder
        self._name = name
        self._part = name + layout.PART_SUFFIX
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
        self._folder.replace(self._part, self._name)

    def discard(self) -> None:
        """Remove the file."""
        self.abandon()
        if self._is_begun:
            self._folder.unlink(self._part)
            self._folder.unlink(self._name)
        self._is_begun = False

    def abandon(self) -> None:
        """Let go of the file without writing: what a forked child does."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None:
            is_there = self._is_begun and (self._folder.is_file(self._name) or self._folder.is_file(self._part))
            self._descriptor = self._reopen() if is_there else self._begin()
        return self._descriptor

    def _begin(self) -> int:
        descriptor = self._folder.create(self._part)
        try:
            write_all(descriptor, self._header)
        except OSError:  # entries without a header could not be read: begin anew next time
            os.close(descriptor)
            self._folder.unlink(self._part)
            raise
        self._is_begun = True
        return descriptor

    def _reopen(self) -> int:
        """Take the end off again."""
        if self._folder.is_file(self._name):
            self._folder.replace(self._name, self._part)
        descriptor = self._folder.open(self._part, os.O_WRONLY)
        end = os.lseek(descriptor, 0, os.SEEK_END) - len(self._footer)
        os.ftruncate(descriptor, end)
        os.lseek(descriptor, end, os.SEEK_SET)
        return descriptor


class RankWriter:
    """All files of one step of one process."""

    def __init__(self, folder: Folder, header: dict[str, Any], *, has_construct: bool, has_extra: bool) -> None:
        self.folder = folder
        opening = json.dumps(header)[:-1] + ', "data": {'
        self._dump = AppendedObject(folder, layout.DUMP_FILE, opening, "}}")
        self._debug = AppendedObject(folder, layout.DEBUG_FILE, opening, "}}")
        self._construct = AppendedObject(folder, layout.CONSTRUCT_FILE, "{", "}")
        self._stack = StackFile(folder, layout.STACK_FILE)
        self._has_construct = has_construct
        self._has_extra = has_extra

    def open(self, run: dict[str, Any]) -> None:
        """Say in run.json whose folder this is. Where files of another run are, nothing is written: that would mix the
        two, or destroy what nothing replaces."""
        found = [name for name in self.folder.names() if is_own_name(name) and name != layout.RUN_FILE]
        if found:
            error = FileExistsError(
                errno.EEXIST,
                f"{self.folder.path} holds {found[0]} of an earlier run, which could not be moved aside: "
                "remove it, or give another dump_path",
            )
            self.folder.refuse(error)
            raise error
        write_run(self.folder, run)

    @property
    def has_records(self) -> bool:
        """Are there whole files of records on disk?"""
        with suppress(OSError):  # nothing is there that could hold them
            return any(self.folder.is_file(name) for name in (layout.DUMP_FILE, layout.DEBUG_FILE))
        return False

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
        self.folder.unlink(layout.RUN_FILE)
        self.folder.remove_folder(layout.TENSOR_FOLDER)
        self.folder.remove()

    def abandon(self) -> None:
        """Let go of the files without writing: what a forked child does."""
        for file in (self._dump, self._debug, self._construct, self._stack):
            file.abandon()


def write_run(folder: Folder, run: dict[str, Any]) -> None:
    """run.json, the circumstances: replaced as a whole, because it is small; on a full disk written over, because it
    says what could not be written."""
    name, text = layout.RUN_FILE, encode_run(run)
    try:
        write_whole(folder, name, text)
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if not is_full or not folder.is_file(name) or not write_over(folder, name, text):
            raise


_run_texts: dict[str, tuple[str, str]] = {}
"""Of each key: what it was last, and how that was written."""


def encode_run(run: dict[str, Any]) -> str:
    """run.json as json writes it, one item a line. It is written several times a step, and little of it changes."""
    texts = []
    for key, value in run.items():
        seen, (before, text) = repr(value), _run_texts.get(key, ("", ""))
        if seen != before:
            text = json.dumps({key: value}, indent=1, default=str, allow_nan=False)[1:-2]
            _run_texts[key] = seen, text
        texts.append(text)
    return f"{{{','.join(texts)}\n}}\n" if texts else "{}\n"


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
