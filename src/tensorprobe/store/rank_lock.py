"""Two processes that record into one dump_path at the same time must not mix or replace each other's files.

The first to come has the rank's folders, in every step, and holds a lock of the operating system on `.rank.lock` in the
dump_path: it ends with the process, however that ends. Another process writes into `proc{PID}` beside them. Sessions of
one process follow each other and share its lock. Where nothing can be locked (Windows, some network file systems) that
is said once, and the folders are taken unprotected.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from tensorprobe.store import layout

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("tensorprobe")

_HELD_BY_ANOTHER = (errno.EWOULDBLOCK, errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)


class LockedByAnotherError(Exception):
    """Another process has this rank."""


@dataclass
class _HeldLock:
    """A lock of this process, and the sessions that need it."""

    descriptor: int
    users: set[RankLock] = field(default_factory=set)


_held: dict[Path, _HeldLock] = {}
_is_registered = False
_is_said = False


class RankLock:
    """Which folders one session writes to: those of its rank, or those of its process."""

    def __init__(self, dump_path: Path, rank: int | None) -> None:
        self.rank = rank
        self._dump_path = dump_path
        self._path = dump_path.resolve() / f".{layout.rank_name(rank)}.lock"
        self._is_second = False
        try:
            self._take()
        except LockedByAnotherError as error:
            self._is_second = True
            logger.warning(
                "%s, which is still running, records into %s in %s; the records of this process go to %s beside it",
                error,
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

    def folder(self, step: int) -> Path:
        """Where the records of this step go."""
        if self._is_second:
            return layout.process_folder(self._dump_path, step)
        return layout.rank_folder(self._dump_path, step, self.rank)

    def release(self) -> None:
        """The session has ended; the lock goes with the last one of this process that needs it."""
        held = _held.get(self._path)
        if held is None:
            return
        held.users.discard(self)
        if not held.users:
            del _held[self._path]
            with contextlib.suppress(OSError):  # the folder may be gone by now
                self._path.unlink()
            os.close(held.descriptor)

    def _take(self) -> None:
        held = _held.get(self._path)
        if held is None:
            try:
                descriptor = _lock(self._path)
            except OSError as error:  # whatever is wrong with this folder is said when the first record is written
                logger.debug("%s could not be locked: %s", self._path, error)
                return
            if descriptor is None:
                return
            _follow_forks()
            held = _held[self._path] = _HeldLock(descriptor)
        held.users.add(self)


def remove_left_locks(dump_path: Path) -> list[str]:
    """Remove the lock files that killed processes left in a dump_path; what a living process holds stays."""
    removed = []
    for path in sorted(dump_path.glob(".rank*.lock")) if fcntl is not None else []:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            removed.append(path.name)
        except OSError as error:
            logger.debug("%s stays: %s", path, error)
        finally:
            os.close(descriptor)
    return removed


def _lock(path: Path) -> int | None:
    """A descriptor that holds the lock; None where there are no locks."""
    if fcntl is None:
        _say_no_locks(path)
        return None
    layout.make_folder(path.parent)
    while True:
        descriptor = layout.open_private(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same_file(descriptor, path):
                _sign(descriptor)
                return descriptor
        except OSError as error:
            owner = os.pread(descriptor, 20, 0).decode("ascii", "replace")
            os.close(descriptor)
            if error.errno in _HELD_BY_ANOTHER:
                raise LockedByAnotherError(f"process {owner}" if owner else "another process") from None
            if error.errno in _NO_LOCKS:
                _say_no_locks(path)
                return None
            raise
        os.close(descriptor)  # its owner has ended in between, and has removed it


def _sign(descriptor: int) -> None:
    """Say in the file whose it is, for the message that another process gives."""
    with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _say_no_locks(path: Path) -> None:
    global _is_said
    if not _is_said:
        _is_said = True
        logger.warning(
            "files in %s cannot be locked here: if another process records into it at the same time, the two spoil "
            "each other's files; give each process a dump_path of its own",
            path.parent,
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
