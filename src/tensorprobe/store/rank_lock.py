"""Two processes that record into one dump_path at the same time must not mix or replace each other's files.

The first to come has the rank's folders, in every step, and holds a lock on `.rank.lock` in the dump_path. Another
process writes into `proc{PID}` beside them. Sessions of one process follow each other and share its lock. Where nothing
can be locked that is said once, and the folders are taken unprotected.
"""

from __future__ import annotations

import logging
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from tensorprobe.store import file_lock, layout
from tensorprobe.store.file_lock import LockedByAnotherError, NoLocksError
from tensorprobe.store.folder import Folder, LinkError

logger = logging.getLogger("tensorprobe")

_LOCK_NAME = re.compile(r"\.(?:rank\d*|run)\.lock")
_ATTEMPTS = 5
_PAUSE_SECONDS = 0.02


@dataclass
class _HeldLock:
    """A lock of this process, and the sessions that need it."""

    descriptor: int
    users: set[RankLock] = field(default_factory=set)


_held: dict[Path, _HeldLock] = {}
_is_registered = False
_is_said = False


def _resolve(path: Path) -> Path:
    """Where it leads; a link that leads to itself is refused when the first file is written."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path.absolute()


class RankLock:
    """Which folders one session writes to: those of its rank, or those of its process."""

    def __init__(self, dump_path: Path, rank: int | None) -> None:
        self.rank = rank
        self._folder = Folder(_resolve(dump_path))
        self._lock_name = lock_name(layout.rank_name(rank))
        self._is_second = False
        try:
            self._take()
        except LockedByAnotherError as error:
            self._is_second = True
            logger.warning(
                "%s, which is still running, records into %s in %s; the records of this process go to %s beside it",
                f"process {error}" if str(error) else "another process",
                layout.rank_name(rank),
                dump_path,
                layout.process_name(),
            )

    @property
    def is_second(self) -> bool:
        """Does another process have the folders of this rank?"""
        return self._is_second

    @property
    def name(self) -> str:
        """What the folder of this process is called."""
        return layout.process_name() if self._is_second else layout.rank_name(self.rank)

    def release(self) -> None:
        """The session has ended; the lock goes with the last one of this process that needs it."""
        held = _held.get(self._path)
        if held is None:
            return
        held.users.discard(self)
        if not held.users:
            del _held[self._path]
            file_lock.give_lock(self._folder, self._lock_name, held.descriptor)

    @property
    def _path(self) -> Path:
        return self._folder.path / self._lock_name

    def _take(self) -> None:
        held = _held.get(self._path)
        if held is None:
            try:
                descriptor = _take_patiently(self._folder, self._lock_name)
            except NoLocksError:
                _say_no_locks(self._folder.path)
                return
            except LinkError as error:
                logger.warning("%s; until then nothing keeps a second process out of this dump_path", error.strerror)
                return
            except OSError as error:  # whatever is wrong with this folder is said when the first record is written
                logger.debug("%s could not be locked: %s", self._path, error)
                return
            _follow_forks()
            held = _held[self._path] = _HeldLock(descriptor)
        held.users.add(self)


def lock_name(folder_name: str) -> str:
    """The file that is locked by whoever writes to folders of this name."""
    return f".{folder_name}.lock"


def remove_left_locks(dump_path: Path) -> list[str]:
    """Remove the lock files that killed processes left in a dump_path; what a living process holds stays, and so does
    what is no file of ours."""
    folder, removed = Folder(dump_path), []
    for name in filter(_LOCK_NAME.fullmatch, folder.names()):
        if not folder.is_file(name):
            logger.warning("%s is not a lock file that a run has left: it stays", dump_path / name)
            continue
        try:
            file_lock.give_lock(folder, name, file_lock.take_lock(folder, name))
            removed.append(name)
        except (LockedByAnotherError, NoLocksError, OSError) as error:
            logger.debug("%s stays: %s", dump_path / name, error)
    return removed


def _take_patiently(folder: Folder, name: str) -> int:
    """Who only looks whether a lock is held has it for a moment."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return file_lock.take_lock(folder, name)
        except LockedByAnotherError:
            time.sleep(_PAUSE_SECONDS)
    return file_lock.take_lock(folder, name)


def _say_no_locks(dump_path: Path) -> None:
    global _is_said
    if not _is_said:
        _is_said = True
        logger.warning(
            "files in %s cannot be locked here: if another process records into it at the same time, the two spoil "
            "each other's files; give each process a dump_path of its own",
            dump_path,
        )


def _follow_forks() -> None:
    global _is_registered
    if not _is_registered:
        _is_registered = True
        os.register_at_fork(after_in_child=_abandon_all)


def _abandon_all() -> None:
    """In a forked child: the locks belong to the parent, and must not outlive it in its children."""
    for held in _held.values():
        os.close(held.descriptor)
    _held.clear()
