"""What an earlier run has left in a dump_path: found, moved aside, put back, removed.

A run that is replaced goes, folder by folder and each by one renaming, to `replaced_{run id}` in the dump_path, where
it lies as it lay before and can be read. Only folders that hold a dump are moved, only files that belong to one are
removed, and no link is followed.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorprobe.store import layout
from tensorprobe.store.file_lock import one_at_a_time
from tensorprobe.store.folder import Folder
from tensorprobe.store.own_name import RANK, STEP, TENSOR_FOLDERS, is_own_file, is_own_name, is_tensor_file
from tensorprobe.store.run_id import REPLACED, base_of, read_run_id

_MAX_RUN_BYTES = 1 << 20
_MAX_TARGETS = 1000
_MAX_MOVES = 10


@dataclass(frozen=True)
class RunFolder:
    """The folder of one process in one step, or of an api_dump, with its run.json."""

    places: tuple[str, ...]
    """Its name, and before it that of its step, if it has one."""
    run: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.places[-1]

    @property
    def run_id(self) -> str | None:
        return read_run_id(self.run)

    @property
    def base(self) -> str | None:
        return base_of(self.run_id) if self.run_id is not None else None


@dataclass(frozen=True)
class Moved:
    """A folder that was moved aside, and where to."""

    found: RunFolder
    target: str


def find_folders(root: Folder) -> list[RunFolder]:
    """All folders of a dump_path that hold a dump. A link is none."""
    return [
        RunFolder(places, read_run(open_below(root, places)))
        for places in _iter_places(root)
        if any(map(is_own_name, open_below(root, places).names()))
    ]


def open_below(root: Folder, places: Sequence[str]) -> Folder:
    folder = root
    for name in places:
        folder = folder.child(name)
    return folder


def read_run(folder: Folder) -> dict[str, Any]:
    """run.json, if there is one that can be read."""
    try:
        run = json.loads(folder.read(layout.RUN_FILE, _MAX_RUN_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return run if isinstance(run, dict) else {}


def has_records(folder: Folder) -> bool:
    """Is there a record, beyond the first line of a file?"""
    for name in (layout.DUMP_FILE, layout.DEBUG_FILE):
        for file in (name, name + layout.PART_SUFFIX):
            if folder.is_file(file):
                rest = folder.read(file, 1 << 16).partition(b"\n")[2]
                if rest and not rest.startswith(b"}"):
                    return True
    return False


def move_aside(root: Folder, found: RunFolder) -> Moved:
    """Move one folder to where replaced runs lie. Files that belong to no dump stay where they were."""
    stem = f"replaced_{found.run_id or 'unknown'}"
    for count in range(1, _MAX_TARGETS):
        target = stem if count == 1 else f"{stem}_{count}"
        above = open_below(root, (target, *found.places[:-1]))
        try:
            open_below(root, found.places[:-1]).move(found.name, above)
        except OSError as error:
            above.remove()
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            continue
        moved, place = above.child(found.name), open_below(root, found.places)
        for name in moved.names():
            if not is_own_name(name):
                moved.move(name, place)
        _remove_step(root, found.places)
        return Moved(found, target)
    raise OSError(errno.EEXIST, f"{root.path / stem} and {_MAX_TARGETS} like it are there: remove them")


def put_back(root: Folder, moved: Sequence[Moved]) -> None:
    """Undo `move_aside`: nothing has come to replace what was moved. What has a successor stays aside."""
    for one in moved:
        source, target = open_below(root, (one.target, *one.found.places)), open_below(root, one.found.places)
        for name in source.names():
            if not target.exists(name):
                source.move(name, target)
        source.remove()


def put_back_unreplaced(dump_path: Path) -> list[str]:
    """If nothing has come to replace a run that was moved aside, or has begun to be: put it back. What was done, in
    words."""
    root = Folder(dump_path)
    targets = replaced_runs(root)
    if not targets:
        return []
    with one_at_a_time(root):  # or it is just being replaced
        moved = [one for target in targets for one in find_replaced(root, target)]
        in_place = find_folders(root)
        if len({one.run_id for one in (*in_place, *(one.found for one in moved))}) != 1:
            return []
        put_back(root, moved)
        return [f"{target}: put back, nothing has replaced it" for target in targets if not root.exists(target)]


def replaced_runs(root: Folder) -> list[str]:
    """The folders of runs that were moved aside; one that the user has renamed is the user's."""
    return [name for name in root.names() if REPLACED.fullmatch(name) and root.is_folder(name)]


def find_replaced(root: Folder, target: str) -> list[Moved]:
    """What lies in one of them."""
    return [Moved(found, target) for found in find_folders(root.child(target))]


def remove_replaced(root: Folder, target: str) -> bool:
    """Remove a run that was moved aside; False if there are things in it that are not ours, which stay."""
    replaced = root.child(target)
    for places in list(_iter_places(replaced)):
        folder = open_below(replaced, places)
        with suppress(FileNotFoundError):  # another rank is at it too
            _remove_files(folder)
        folder.remove()
    for name in replaced.names():
        replaced.remove_folder(name)
    root.remove_folder(target)
    return not root.exists(target)


def remove_dump(root: Folder, places: tuple[str, ...]) -> None:
    """Remove the files of one process in one step, and the folders if nothing else is in them. They go aside first, so
    that nobody meets a half of them, also after a kill; the next run removes what is left there then."""
    found = RunFolder(places, read_run(open_below(root, places)))
    for _ in range(_MAX_MOVES):
        try:
            moved = move_aside(root, found)
        except FileNotFoundError:  # another rank has just removed the folder aside, or there is nothing to remove
            continue
        folder = open_below(root, (moved.target, *places))
        with suppress(FileNotFoundError):
            folder.unlink(layout.RUN_FILE)  # first: without it nothing puts the rest back
            _remove_files(folder)
        folder.remove()
        return


def _iter_places(root: Folder) -> Iterator[tuple[str, ...]]:
    for name in root.names():
        if RANK.fullmatch(name) and root.is_folder(name):
            yield (name,)
        elif STEP.fullmatch(name) and root.is_folder(name):
            step = root.child(name)
            yield from ((name, rank) for rank in step.names() if RANK.fullmatch(rank) and step.is_folder(rank))


def _remove_files(folder: Folder) -> None:
    for name in folder.names():
        if name in TENSOR_FOLDERS and folder.is_folder(name):
            tensors = folder.child(name)
            for file in tensors.names():
                if is_tensor_file(file) and tensors.is_file(file):
                    tensors.unlink(file)
            folder.remove_folder(name)
        elif is_own_file(name) and folder.is_file(name):
            folder.unlink(name)


def _remove_step(root: Folder, places: Sequence[str]) -> None:
    if len(places) > 1:
        root.remove_folder(places[0])
