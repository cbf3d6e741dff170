"""Close the files that a killed run left open.

Everything is read once before anything is changed: what cannot be recovered, or is no dump at all, is left as it was.
Every file is written aside and renamed, and its part is removed only afterwards: an interruption loses nothing, and a
second run goes on where the first ended. A complete dump is never touched, nor one whose run is still alive.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tensorprobe.errors import DumpError
from tensorprobe.model.count import count_noun
from tensorprobe.store import journal, layout, side_file
from tensorprobe.store.api_dump_reader import STACK_TYPES
from tensorprobe.store.earlier_run import put_back_unreplaced
from tensorprobe.store.folder import Folder
from tensorprobe.store.rank_lock import remove_left_locks
from tensorprobe.store.reader import RankDump, open_dump
from tensorprobe.store.record_file import load_whole
from tensorprobe.store.running import is_running

_PARTS = (layout.CONSTRUCT_FILE, layout.STACK_FILE, layout.DEBUG_FILE, layout.DUMP_FILE)
"""In the order in which they are closed: while dump.json is a part, everybody sees that the work is not done."""
_TYPES = {
    layout.CONSTRUCT_FILE: journal.PARENT_TYPES,
    layout.DEBUG_FILE: journal.SAVED_TYPES,
    layout.DUMP_FILE: journal.RECORD_TYPES,
}

OnFolder = Callable[[RankDump], None]


@dataclass(frozen=True)
class Recovery:
    """What was done in one rank folder."""

    folder: Path
    actions: tuple[str, ...]


def recover_dump(path: str | Path, *, force: bool = False, on_folder: OnFolder | None = None) -> list[Recovery]:
    """Make every cut file of a dump complete; the empty list means that there was nothing to do.

    `force` also takes a dump whose process seems to be alive: its number may belong to another process by now.
    """
    path = Path(path)
    path = path.parent if path.is_file() else path
    done = _put_back(path)
    dump = open_dump(path).select()
    waiting = [rank for rank in dump.ranks() if _find_parts(rank) or _was_cut_off(rank)]
    for rank in waiting:
        if not force:
            _refuse_live_run(rank)
        _refuse_to_lose(rank)
        _rehearse(rank)
    for rank in waiting:
        try:
            done.append(Recovery(rank.folder, tuple(_recover_rank(rank))))
        except OSError as error:
            raise DumpError(
                f"{rank.folder} cannot be recovered ({error}). Nothing in it is lost; make room or give permission, "
                "then recover again."
            ) from error
        if on_folder is not None:
            on_folder(rank)
    if dump.path.is_dir():
        left_locks = _remove_locks(dump.path, done)
        # A step that was killed before it had its first file: only the lock tells that its run has ended.
        empty = [rank for rank in dump.ranks() if not rank.run and rank.dump_file is None]
        ended = [rank for rank in empty if f".{rank.folder.name}.lock" in left_locks]
        cleared = [Recovery(rank.folder, tuple(_clear(rank))) for rank in ended]
        done += [recovery for recovery in cleared if recovery.actions]
    return done


def _clear(rank: RankDump) -> list[str]:
    """The files that were being written there. A link in its place is not followed."""
    try:
        return list(_remove_temporary_files(rank))
    except OSError as error:
        return [f"{rank.folder.name}: left as it is ({error.strerror or error})"]


def _remove_locks(dump_path: Path, done: list[Recovery]) -> list[str]:
    """The names of those that were removed. The files are whole by now, whatever lies in the place of a lock."""
    try:
        left = remove_left_locks(dump_path)
    except OSError as error:
        done.append(Recovery(dump_path, (f"lock files: left as they are ({error.strerror or error})",)))
        return []
    done.extend(Recovery(dump_path, (f"{name}: removed",)) for name in left)
    return left


def _put_back(path: Path) -> list[Recovery]:
    """A run that another one was to replace, and did not."""
    try:
        actions = put_back_unreplaced(path) if path.is_dir() else []
    except OSError as error:
        raise DumpError(f"{path} cannot be recovered ({error}). Nothing in it is lost.") from error
    return [Recovery(path, tuple(actions))] if actions else []


def _open_folder(rank: RankDump) -> Folder:
    """To be written to: no link in the dump is followed."""
    root, path = Folder(rank.root), rank.folder
    if path.resolve() == rank.root:
        return root
    return (
        root.child(path.name) if path.parent.resolve() == rank.root else root.child(path.parent.name).child(path.name)
    )


def _find_parts(rank: RankDump) -> list[str]:
    names = _PARTS if rank.api_dump is None else (rank.api_dump.stack_file, *_PARTS)
    return [name for name in names if side_file.find_file(rank.folder, name + layout.PART_SUFFIX, rank.root)]


def _was_cut_off(rank: RankDump) -> bool:
    """A kill between two windows leaves no part: only run.json tells, which says neither that the step is complete nor
    how it ended. What SIGTERM or Ctrl-C ended may have files of the call that was running, which has no record."""
    if rank.run.get("complete") is not False or rank.run.get("recovered") is True:
        return False
    return "ended" not in rank.run or bool(_compare_tensor_files(rank)[0])


def _rehearse(rank: RankDump) -> None:
    """Read all that is going to be read, and look at what is going to be replaced."""
    _compare_tensor_files(rank)
    parts = _find_parts(rank)
    for name in (*parts, layout.RUN_FILE):
        for path in (rank.folder / name, layout.temporary_path(rank.folder / name)):
            if path.is_dir():
                raise DumpError(
                    f"{path} is a folder, and a file has to go there. Move it out of the dump, then recover again."
                )
    for name in parts:
        for _ in _render_part(rank, name):
            pass


def _recover_rank(rank: RankDump) -> Iterator[str]:
    yield from _remove_temporary_files(rank)
    yield from _match_tensor_files(rank)
    yield from _mark_run(rank)
    folder = _open_folder(rank)
    if rank.api_dump is not None and _cut_half_line(folder, rank.api_dump.info_file):
        yield f"{rank.api_dump.info_file}: half a line at its end removed"
    for name in _find_parts(rank):
        part = rank.folder / (name + layout.PART_SUFFIX)
        said = _describe_part(part, name)
        write_aside(folder, name, part.name, _render_part(rank, name))
        yield said
        folder.unlink(part.name)


def _cut_half_line(folder: Folder, name: str) -> bool:
    """A file of lines ends with a whole one."""
    if not folder.is_file(name):
        return False
    with os.fdopen(folder.open(name, os.O_RDWR), "r+b") as file:
        data = file.read()
        is_cut = bool(data) and not data.endswith(b"\n")
        if is_cut:
            file.truncate(data.rfind(b"\n") + 1)
    return is_cut


def _render_part(rank: RankDump, name: str) -> Iterator[bytes]:
    """The whole file that a part becomes."""
    if name == layout.STACK_FILE:
        return _render_stacks(rank)
    part = rank.folder / (name + layout.PART_SUFFIX)
    types = _TYPES.get(name, STACK_TYPES)
    if name not in (layout.DUMP_FILE, layout.DEBUG_FILE):
        return _render_lines("{", _whole_lines(part, types), "}")
    return _render_lines(
        _render_header(rank, journal.outline_part(part, types).header), _whole_lines(part, types), "}}"
    )


def _describe_part(part: Path, name: str) -> str:
    if name == layout.STACK_FILE:
        return f"{name}: written from its journal"
    outline = journal.outline_part(part, _TYPES.get(name, STACK_TYPES))
    lost = len(outline.bad_lines) + outline.is_cut
    text = f"{name}: {count_noun(len(outline.offsets), 'entry', 'entries')}"
    return f"{text}, {count_noun(lost, 'cut line', 'cut lines')} left out" if lost else text


def _refuse_to_lose(rank: RankDump) -> None:
    """After an interrupted recovery both files are there, and the part holds all; if not, a person has to choose."""
    for name in _TYPES:
        path = side_file.find_file(rank.folder, name, rank.root)
        part = side_file.find_file(rank.folder, name + layout.PART_SUFFIX, rank.root)
        if path is None or part is None:
            continue
        if not _names_in(path) <= journal.outline_part(part, _TYPES[name]).offsets.keys():
            raise DumpError(
                f"{path} is complete, and {part.name} beside it lacks some of its entries. Move the one you do not "
                "want out of the folder, then recover again."
            )


def _names_in(path: Path) -> set[str]:
    outline = journal.outline_whole(path)
    if outline is not None:
        return set(outline.offsets)
    try:
        content = load_whole(path)
    except DumpError:
        return set()
    data = content.get("data", content)
    return set(data) if isinstance(data, dict) else set()


def _whole_lines(part: Path, types: journal.Types) -> Iterator[bytes]:
    """The entries as they stand in the file, so that not one digit changes."""
    for number, _, line in journal.iter_lines(part):
        if number == 1:
            continue
        try:
            journal.parse_entry(line, types, part)
        except ValueError:
            continue
        yield journal.strip_line(line)


def _render_header(rank: RankDump, header: dict[str, Any] | None) -> str:
    if not header:
        header = {key: rank.run.get(key) for key in ("task", "level", "framework")}
        header["dump_data_dir"] = None
    return json.dumps(header)[:-1] + ', "data": {'


def _render_lines(header: str, lines: Iterable[bytes], closing: str) -> Iterator[bytes]:
    yield header.encode("utf-8", "backslashreplace")
    separator = b"\n"
    for line in lines:
        yield separator + line
        separator = b",\n"
    yield f"\n{closing}\n".encode()


def _render_stacks(rank: RankDump) -> Iterator[bytes]:
    """stack.json holds each distinct stack once, with all its records."""
    groups: dict[tuple[str, ...], list[str]] = {}
    known: dict[int, list[str]] = {}  # by address: a long stack of many calls is hashed once
    stacks = side_file.read_stacks(rank.folder, rank.root).content
    for name, frames in stacks.items():
        if id(frames) not in known:
            known[id(frames)] = groups.setdefault(frames, [])
        known[id(frames)].append(name)
    entries = ({str(number): [names, frames]} for number, (frames, names) in enumerate(groups.items()))
    return _render_lines("{", (json.dumps(entry)[1:-1].encode() for entry in entries), "}")


def _mark_run(rank: RankDump) -> Iterator[str]:
    """Say in run.json that what the run still held in memory is missing."""
    folder = _open_folder(rank)
    if folder.exists(layout.RUN_FILE) and not rank.run:
        yield f"{layout.RUN_FILE}: cannot be read, left as it is"
    elif rank.run.get("recovered") is not True:
        run = {**rank.run, "recovered": True}
        write_aside(folder, layout.RUN_FILE, layout.RUN_FILE, [json.dumps(run, indent=1).encode() + b"\n"])
        yield f"{layout.RUN_FILE}: marked as recovered"


def _remove_temporary_files(rank: RankDump) -> Iterator[str]:
    folder = _open_folder(rank)
    folders = [folder, folder.child(rank.tensor_folder)] if folder.is_folder(rank.tensor_folder) else [folder]
    for one in folders:
        names = [name for name in one.names() if name.startswith(".") and name.endswith(layout.TEMPORARY_SUFFIX)]
        unfinished = [name for name in names if one.is_file(name)]
        for name in unfinished:
            one.unlink(name)
        if unfinished:
            yield f"{one.path.name}: {count_noun(len(unfinished), 'unfinished file', 'unfinished files')} removed"


def _match_tensor_files(rank: RankDump) -> Iterator[str]:
    """A tensor file comes before its record: those of the records that were lost have no use any more."""
    folder = _open_folder(rank).child(rank.tensor_folder)
    unnamed, missing = _compare_tensor_files(rank)
    coverage = rank.run.get("coverage")
    has_failed = isinstance(coverage, dict) and bool(coverage.get("failed"))  # a full disk: the record is what is lost
    if unnamed and (has_failed or any(file.has_bad_lines for file in (rank.dump_file, rank.debug_file) if file)):
        yield f"{rank.tensor_folder}: {count_noun(len(unnamed), 'file', 'files')} of no readable record left"
    elif unnamed:
        for name in unnamed:
            folder.unlink(name)
        yield f"{rank.tensor_folder}: {count_noun(len(unnamed), 'file', 'files')} of records that were lost removed"
    if missing:
        words = count_noun(len(missing), "file that a record names is", "files that records name are")
        yield f"{rank.tensor_folder}: {words} missing, the first is {min(missing)}"


def _compare_tensor_files(rank: RankDump) -> tuple[set[str], set[str]]:
    """The files that nothing names, and those that are named and not there. Backward passes are named in run.json."""
    folder = rank.folder / rank.tensor_folder
    if folder.is_symlink():  # wherever it leads, nothing is removed there
        return set(), set()
    entries = chain(
        (record.fields for record in rank.records()),
        (saved.tree for saved in rank.saved_values()),
        [rank.run.get("backward_passes")],
    )
    named = {name for entry in entries for name in _data_names(entry)}
    files = _files_in(folder) if folder.is_dir() else []
    there = {name for name in files if name.endswith(layout.TENSOR_SUFFIXES)}
    return there - named, named - there


def _files_in(folder: Path) -> list[str]:
    """What can be removed: files, and links themselves; a folder of such a name is somebody else's."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]


def _data_names(tree: Any) -> Iterator[str]:
    """The tensor files that a record names, in whatever field: what is not found here is deleted."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
        elif isinstance(node, dict):
            name = node.get("data_name")
            if isinstance(name, str):
                yield name
            waiting.extend(node.values())


def write_aside(folder: Folder, name: str, like: str, pieces: Iterable[bytes]) -> None:
    """Write a file under another name, bring it to disk, and rename it; it gets the permissions of `like`."""
    mode = folder.status(like).st_mode if folder.is_file(like) else None
    with folder.open_whole(name) as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        if mode is not None and hasattr(os, "fchmod"):  # not on Windows
            os.fchmod(file.fileno(), stat.S_IMODE(mode))


def _refuse_live_run(rank: RankDump) -> None:
    pid, host = rank.run.get("pid"), rank.run.get("host")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        return
    if host in (None, socket.gethostname()) and is_running(pid):
        raise DumpError(
            f"{rank.folder} is being written by process {pid}, which is alive on this host. Wait until it has ended, "
            "or, if that number belongs to another process by now, use --force (force=True)."
        )
