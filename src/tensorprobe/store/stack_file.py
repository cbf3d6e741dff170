"""stack.json: each distinct stack once, with the calls that have it.

    {
    "0": [["Functional.linear.0.forward", "Functional.linear.1.forward"], ["File model.py, line 18, …"]],
    "1": [["Functional.relu.0.forward"          ], ["File model.py, line 19, …"]]
    }

Such a file cannot be appended to, and it must be whole after every stop, of which a step may have hundreds. What is
recorded therefore goes into a journal first (stack.json.part, one line a call), and a stop adds what is new in it to
the groups: into the room behind their names or, where there is none, by moving the group to the end of the file and
giving it room for as much again. The cost of a stop is that of the calls since the last one. While the journal is there
it is what counts; when the step ends the file is written anew without the room, and the journal goes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tensorprobe.store import layout
from tensorprobe.store.disk import append_whole, read_at, write_at, write_whole
from tensorprobe.store.folder import Folder

_END = b"\n}\n"


class StackFile:
    """The journal, and the file that is made from it."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._part = name + layout.PART_SUFFIX
        self._descriptor: int | None = None
        self._numbers: dict[int, int] = {}
        self._texts: dict[tuple[str, ...], int] = {}
        self._frames: list[tuple[str, ...]] = []
        self._lines: list[str] = []
        self._groups: StackGroups | None = None
        self._placed_bytes = 0
        """How much of the journal is in the groups."""

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
            self._frames.append(frames)
            self._lines.append(json.dumps(["stack", number, frames]))
        return number

    def flush(self) -> None:
        """Bring the journal to its file."""
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        try:
            if self._descriptor is None:
                self._descriptor = self._folder.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            append_whole(self._descriptor, ("\n".join(lines) + "\n").encode())
        except BaseException:
            self._lines = [line for line in lines if line.startswith('["stack"')]  # later calls may have them too
            raise

    def close(self) -> None:
        """Make stack.json whole. The journal stays until `finish`, because the step may go on."""
        self.flush()
        self.abandon()
        groups, self._groups = self._groups, None  # if the following fails, all is made anew next time
        if groups is not None and groups.is_as_left():
            new, self._placed_bytes = self._read_journal(self._placed_bytes)
            groups.extend(new, self._frames)
        else:
            groups = self._make_groups()
        self._groups = groups

    def finish(self) -> None:
        """The step is over: the journal is no longer needed, nor the room behind the names."""
        self.close()
        if self._groups is not None and self._groups.has_room:
            self._groups = self._make_groups()
        self._folder.unlink(self._part)

    def discard(self) -> None:
        """Remove the file."""
        self.abandon()
        self._folder.unlink(self._part)
        if self._groups is not None:
            self._folder.unlink(self._name)
        self._groups, self._placed_bytes = None, 0

    def abandon(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _make_groups(self) -> StackGroups:
        calls, self._placed_bytes = self._read_journal(0)
        return StackGroups(self._folder, self._name, calls, self._frames)

    def _read_journal(self, start: int) -> tuple[dict[int, list[str]], int]:
        """The calls of each stack from `start` on, and how far the journal goes."""
        if not self._folder.is_file(self._part):
            return {}, 0
        with os.fdopen(self._folder.open(self._part, os.O_RDONLY), "rb") as file:
            file.seek(start)
            data = file.read()
        return group_calls(data.decode().splitlines()), start + len(data)


def group_calls(journal: Iterable[str]) -> dict[int, list[str]]:
    """The calls of each stack."""
    calls: dict[int, list[str]] = {}
    for line in journal:
        kind, number, content = json.loads(line)
        if kind == "call":
            calls.setdefault(number, []).append(content)
    return calls


@dataclass
class Group:
    """Where one entry stands in stack.json."""

    start: int
    names_end: int
    """Behind the last name: here the room begins."""
    room_end: int
    end: int
    """Behind the entry; the comma is not part of it."""


class StackGroups:
    """stack.json, whole, and how it is extended."""

    def __init__(
        self, folder: Folder, name: str, calls: Mapping[int, list[str]], frames: Sequence[tuple[str, ...]]
    ) -> None:
        self._folder = folder
        self._name = name
        self._groups: dict[int, Group] = {}
        self._end = len(b"{")
        entries: list[bytes] = []
        for number, names in calls.items():
            entries.append(self._place(number, _encode_head(number, names), 0, _encode_tail(frames[number])))
        self._size_bytes = self._end + len(_END)
        self.has_room = False
        text = b"{" + b"".join(entries) + _END if entries else b"{}\n"
        write_whole(folder, name, text.decode())

    def is_as_left(self) -> bool:
        """Nobody has changed the file, or taken it away; one without entries is made anew."""
        try:
            return bool(self._groups) and self._folder.status(self._name).st_size == self._size_bytes
        except OSError:
            return False

    def extend(self, calls: Mapping[int, list[str]], frames: Sequence[tuple[str, ...]]) -> None:
        """Add calls. The file is not whole while this runs: the journal is."""
        if not calls:
            return
        descriptor = self._folder.open(self._name, os.O_RDWR)
        try:
            self._extend(descriptor, calls, frames)
        finally:
            os.close(descriptor)

    def _extend(self, descriptor: int, calls: Mapping[int, list[str]], frames: Sequence[tuple[str, ...]]) -> None:
        old_end, entries, moved = self._end, [], []
        for number, names in calls.items():
            group = self._groups.get(number)
            addition = b", " + _encode_names(names)
            if group is None:
                entries.append(self._place(number, _encode_head(number, names), 0, _encode_tail(frames[number])))
            elif group.names_end + len(addition) <= group.room_end:
                write_at(descriptor, addition, group.names_end)
                group.names_end += len(addition)
            else:
                head = read_at(descriptor, group.names_end - group.start, group.start) + addition
                moved.append(group)
                entries.append(self._place(number, head, len(head), _encode_tail(frames[number])))
                self.has_room = True
        if entries:
            write_at(descriptor, b"".join(entries) + _END, old_end)
            self._size_bytes = self._end + len(_END)
        for group in moved:  # with its comma, which is there now in any case
            write_at(descriptor, b" " * (group.end + 1 - group.start), group.start)

    def _place(self, number: int, head: bytes, room: int, tail: bytes) -> bytes:
        """An entry at the end of the file, with the separator before it."""
        separator = b",\n" if self._groups else b"\n"
        start = self._end + len(separator)
        names_end = start + len(head)
        self._end = names_end + room + len(tail)
        self._groups[number] = Group(start, names_end, names_end + room, self._end)
        return separator + head + b" " * room + tail


def _encode_head(number: int, names: Sequence[str]) -> bytes:
    return f'"{number}": [['.encode() + _encode_names(names)


def _encode_names(names: Sequence[str]) -> bytes:
    return json.dumps(names)[1:-1].encode()


def _encode_tail(frames: Sequence[str]) -> bytes:
    return b"], " + json.dumps(frames).encode() + b"]"
