"""Locks of the operating system on small files in a dump_path. They end with their process, however that ends.

Whoever has a lock removes its file before giving it up: a file that lies there after a SIGKILL means nothing. Windows
and some network file systems have no such locks.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tensorprobe.store.folder import Folder, LinkError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_HELD_BY_ANOTHER = (errno.EWOULDBLOCK, errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
_MUTEX_NAME = ".run.lock"
_MUTEX_SECONDS = 60.0


class LockedByAnotherError(Exception):
    """Another process has this lock; the text is its number, if that is known."""


class NoLocksError(Exception):
    """Nothing can be locked here."""


def take_lock(folder: Folder, name: str) -> int:
    """A descriptor that holds the lock. OSError if a link or a folder has this name."""
    if fcntl is None:
        raise NoLocksError
    while True:
        descriptor = folder.open(name, os.O_RDWR | os.O_CREAT)
        if os.fstat(descriptor).st_nlink > 1:  # a further name of a file of somebody's: not to be written into
            os.close(descriptor)
            raise LinkError(errno.EMLINK, f"{folder.path / name} is a further name of another file: remove it")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same_file(descriptor, folder, name):
                _sign(descriptor)
                return descriptor
        except OSError as error:
            owner = _read_signature(descriptor)
            os.close(descriptor)
            if error.errno in _HELD_BY_ANOTHER:
                raise LockedByAnotherError(owner) from None
            if error.errno in _NO_LOCKS:
                raise NoLocksError from None
            raise
        os.close(descriptor)  # its owner has ended in between, and has removed it


def give_lock(folder: Folder, name: str, descriptor: int) -> None:
    """Remove the file, and give the lock up."""
    with suppress(OSError):  # the folder may be gone by now
        folder.unlink(name)
    os.close(descriptor)


def find_owner(folder: Folder, name: str) -> str | None:
    """The number of the living process that has this lock; "" if it has not signed it, None if nobody has it.
    NoLocksError where there are no locks."""
    if fcntl is None:
        raise NoLocksError
    if not folder.is_file(name):
        return None
    descriptor = folder.open(name, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD_BY_ANOTHER:
            return _read_signature(descriptor)
        raise NoLocksError from None
    finally:
        os.close(descriptor)
    return None


@contextmanager
def one_at_a_time(folder: Folder) -> Iterator[None]:
    """Inside, no other process is inside, in this folder. Not waited for for ever: a process may be stopped there."""
    descriptor: int | None = None
    give_up = time.monotonic() + _MUTEX_SECONDS
    while descriptor is None and time.monotonic() < give_up:
        try:
            descriptor = take_lock(folder, _MUTEX_NAME)
        except LockedByAnotherError:
            time.sleep(0.01)
        except (NoLocksError, OSError):  # what is wrong with this folder is said when the first file is written
            break
    try:
        yield
    finally:
        if descriptor is not None:
            give_lock(folder, _MUTEX_NAME, descriptor)


def _sign(descriptor: int) -> None:
    """Say in the file whose it is: others name its owner, and tell by it what the owner writes."""
    with suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)


def _read_signature(descriptor: int) -> str:
    return os.pread(descriptor, 20, 0).decode("ascii", "replace")


def _is_same_file(descriptor: int, folder: Folder, name: str) -> bool:
    """Is what was locked still what has this name? Its owner may have removed it, and a third made it anew."""
    try:
        return os.path.samestat(os.fstat(descriptor), folder.status(name))
    except FileNotFoundError:
        return False
