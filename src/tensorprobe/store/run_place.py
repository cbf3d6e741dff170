"""Where one session records, and as which run.

One run: the processes that record into one dump_path at the same time share an id. The first to come makes it; the
others find it in the run.json of one that still records, or, for the ranks of a distributed program, of one that did so
when they were started. What a process records afterwards into the same dump_path is the next run.

One rule: a new run replaces the earlier one that has a folder of the same name; outside distributed programs, every
earlier one. Before its first file is written all folders of that run are moved aside, to `replaced_{run id}`. They are
removed when a step of the new run is complete, or when the new run is itself replaced: of those that wait, the last is
kept. So at any time, also after a SIGKILL, the dump_path holds the steps of one run, and nothing was deleted that
nothing has replaced.

What a living process writes is not moved, nor ranks that the new run does not have, where they may be a part of it that
was recorded before. Readers tell them by their ids.
"""

from __future__ import annotations

import datetime
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tensorprobe.store import earlier_run, layout
from tensorprobe.store.earlier_run import Moved, RunFolder
from tensorprobe.store.file_lock import NoLocksError, find_owner, one_at_a_time
from tensorprobe.store.folder import Folder
from tensorprobe.store.own_name import is_own_name
from tensorprobe.store.rank_lock import RankLock, lock_name
from tensorprobe.store.run_id import base_of, make_run_id, number_run, read_time
from tensorprobe.store.running import is_running, own_beginning_seconds, read_beginning
from tensorprobe.store.writer import write_run

logger = logging.getLogger("tensorprobe")


@dataclass
class _ProcessRun:
    """What this process has recorded into one dump_path."""

    pid: int
    base: str
    count: int = 0


_process_runs: dict[Path, _ProcessRun] = {}


class RunPlace:
    """The folders of one rank of a session. `run_id`: of the same session under another rank, if it has begun."""

    def __init__(self, dump_path: Path, rank: int | None, run_id: str | None = None) -> None:
        self.run_id = run_id
        self._dump_path = dump_path
        self._rank = rank
        self._lock = RankLock(dump_path, rank)
        self._moved: list[Moved] = []
        self._is_entered = False
        self._is_empty = True
        self._is_established = False

    @property
    def name(self) -> str:
        """What the folder of this process is called, in every step."""
        return self._lock.name

    def open(self, *places: str) -> Folder:
        """A folder of this session, from the dump_path down; the first time the earlier run makes room for it."""
        root = Folder(self._dump_path)
        folder = earlier_run.open_below(root, places)
        if not self._is_entered:
            self._is_entered = True
            try:
                with one_at_a_time(root):
                    self._enter(root, folder)
            except Exception as error:  # where files of an earlier run are, the writer writes nothing
                logger.error("the earlier run in %s could not be looked at (%s); training goes on", root.path, error)
            self.run_id = self.run_id or make_run_id()
        return folder

    def end_step(self, *, is_complete: bool) -> None:
        """A step is over and on disk. A complete one replaces what was moved aside."""
        self._is_empty = False
        if not is_complete or self._is_established:
            return
        self._is_established = True
        root = Folder(self._dump_path)
        for name in earlier_run.replaced_runs(root):
            _remove(root, name)

    def leave(self) -> None:
        """Nothing was recorded in this step; if in none before it either, the earlier run takes its place again."""
        if not self._moved or not self._is_empty:
            return
        root = Folder(self._dump_path)
        with one_at_a_time(root):
            if all(one.run_id != self.run_id for one in earlier_run.find_folders(root)):  # nor by another rank
                earlier_run.put_back(root, self._moved)
                self._moved = []
                logger.info("nothing was recorded: the earlier run is in its place again, in %s", root.path)

    def release(self) -> None:
        self._lock.release()

    def _enter(self, root: Folder, folder: Folder) -> None:
        name = folder.path.name
        found: list[RunFolder] = []
        try:
            found = earlier_run.find_folders(root)
        except OSError as error:  # said when the first file is written
            logger.debug("%s could not be looked through: %s", root.path, error)
        is_first, locks = False, _Locks(root, self._lock)
        if self.run_id is None:
            self.run_id, is_first = self._choose_run(locks, name, found)
        older = earlier_run.replaced_runs(root) if found else []
        self._move_aside(root, [one for one in found if self._replaces(locks, one, found, name)])
        if is_first:
            self._remove_older(root, older)
        try:  # the others of this run find its id here, as soon as the lock is given
            if not any(map(is_own_name, folder.names())):  # what could not be moved keeps its id
                write_run(folder, {"run_id": self.run_id, **describe_process(), "complete": False})
        except OSError as error:
            logger.debug("%s could not be written: %s", folder.path / layout.RUN_FILE, error)

    def _choose_run(self, locks: _Locks, name: str, found: Sequence[RunFolder]) -> tuple[str, bool]:
        """The id, and whether this process is the first to have it."""
        key = self._dump_path.resolve()
        own = _process_runs.get(key)
        is_first = True
        if own is None or own.pid != os.getpid():  # not one that a forked child has inherited
            base = self._find_run(locks, name, found)
            is_first = base is None
            own = _process_runs[key] = _ProcessRun(os.getpid(), base or make_run_id())
        own.count += 1
        return number_run(own.base, own.count), is_first

    def _find_run(self, locks: _Locks, name: str, found: Sequence[RunFolder]) -> str | None:
        """The run that others have begun and that this process belongs to: it has no folder of this name yet."""
        taken = {one.base for one in found if one.name == name}
        others = [one for one in found if one.base not in taken]
        joined = [one for one in others if locks.is_recording(one) or self._was_started_before_its_end(one)]
        return max((one.base for one in joined if one.base is not None), default=None)

    def _was_started_before_its_end(self, other: RunFolder) -> bool:
        """Ranks of one program need not record at the same time, but are started before the first of them ends."""
        began = read_time(other.run)
        is_rank = self._rank is not None and other.name.startswith("rank") and other.name != "rank"
        return is_rank and began is not None and began.timestamp() >= own_beginning_seconds()

    def _replaces(self, locks: _Locks, one: RunFolder, found: Sequence[RunFolder], name: str) -> bool:
        """Is this folder one of the run that is replaced?"""
        if one.name == name:
            return one.run_id is None or one.run_id != self.run_id
        if one.run_id == self.run_id or not one.run or locks.is_recording(one):
            return False
        namesakes = [other for other in found if other.name == name]
        if one.base is not None and one.base == base_of(str(self.run_id)):  # an earlier run of this program
            return one.run_id in {other.run_id for other in namesakes}
        return self._rank is None or one.base in {other.base for other in namesakes}

    def _move_aside(self, root: Folder, going: Sequence[RunFolder]) -> None:
        for one in going:
            try:
                self._moved.append(earlier_run.move_aside(root, one))
            except FileNotFoundError:
                continue  # another rank has moved it
            except OSError as error:
                path = root.path.joinpath(*one.places)
                logger.error("%s of an earlier run cannot be moved aside (%s); training goes on", path, error)
        for target in dict.fromkeys(one.target for one in self._moved):
            places = ["/".join(one.found.places) for one in self._moved if one.target == target]
            logger.warning(
                "%s held an earlier run (%s), which is now in %s; it is removed when a step of this run is complete. "
                "To keep it, rename that folder",
                root.path,
                places[0] if len(places) == 1 else f"{places[0]} … {places[-1]}, {len(places)} folders",
                root.path / target,
            )

    def _remove_older(self, root: Folder, older: Sequence[str]) -> None:
        """What was moved aside for the run that is itself moved aside now, and that has replaced it therefore."""
        targets = {one.target for one in self._moved}
        folders = [earlier_run.open_below(root, (one.target, *one.found.places)) for one in self._moved]
        try:
            has_records = any(map(earlier_run.has_records, folders))
        except OSError as error:
            logger.debug("%s could not be looked at: %s", root.path, error)
            return
        for name in older:
            if has_records and name not in targets:
                _remove(root, name)


def describe_process() -> dict[str, object]:
    """Which process writes: in every run.json."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process_began": read_beginning(os.getpid()),
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"),
    }


class _Locks:
    """Who else records into a dump_path at this moment. Each lock is looked at once: whoever looks has it for a
    moment."""

    def __init__(self, root: Folder, own: RankLock) -> None:
        self._root = root
        self._owners: dict[str, str | None] = {} if own.is_second else {lock_name(own.name): None}

    def is_recording(self, one: RunFolder) -> bool:
        """Does the process that made this folder still record into it? Whoever holds its lock may be another one, which
        has yet to move this folder aside. Where no lock can tell, that it lives must do."""
        pid, began = one.run.get("pid"), one.run.get("process_began")
        owners = []
        for name in _locked_names(one):
            with suppress(NoLocksError, OSError):
                owners.append(self._find_owner(lock_name(name)))
        if str(pid) in owners:
            return True
        is_told = bool(owners) and "" not in owners
        is_here = one.run.get("host") == socket.gethostname() and isinstance(pid, int) and pid > 0
        if not is_here or is_told:
            return False
        return is_running(int(str(pid)), began if isinstance(began, str) else None)

    def _find_owner(self, name: str) -> str | None:
        if name not in self._owners:
            self._owners[name] = find_owner(self._root, name)
        return self._owners[name]


def _locked_names(one: RunFolder) -> tuple[str, ...]:
    """By which names its writer has locked it: a process in `proc{PID}` has not, and an api_dump calls the folder of a
    process without a rank `rank0`."""
    if not one.name.startswith("rank"):
        return ()
    return (one.name,) if len(one.places) > 1 else (one.name, layout.rank_name(None))


def _remove(root: Folder, name: str) -> None:
    try:
        if earlier_run.remove_replaced(root, name):
            logger.info("%s, an earlier run, is removed: this run has replaced it", root.path / name)
        else:
            logger.warning(
                "%s is not removed as a whole: there are files in it that belong to no dump", root.path / name
            )
    except OSError as error:
        logger.warning("%s, an earlier run, could not be removed (%s)", root.path / name, error)
