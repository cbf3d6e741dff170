"""Writing that is done whole or not at all, or leaves what was there: on a full disk, and when Ctrl-C comes in the
middle."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tensorprobe.errors import UsageError
from tensorprobe.store import layout
from tensorprobe.store.folder import Folder

_BLOCK_BYTES = 4096  # of ext4, xfs, tmpfs


def write_whole(folder: Folder, name: str, text: str) -> None:
    """Write a file aside and rename it: it is there whole or not at all."""
    with folder.open_whole(name) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


@contextmanager
def open_whole(path: Path) -> Iterator[BinaryIO]:
    """The same for a file of no dump, where the user wants it: it is written in pieces, appears when the block ends
    well, and replaces an older one."""
    if path.is_symlink() or (path.exists() and not path.is_file() and not path.is_dir()):
        raise FileExistsError(errno.EEXIST, "it is a link or a device, and no ordinary file", str(path))
    temporary = layout.temporary_path(path)
    try:
        descriptor = layout.open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(descriptor, "wb") as file:
            yield file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Around what goes where the user wants it: UsageError where it cannot."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"-o {folder} cannot be written to ({error.strerror or error}).") from error


def write_over(folder: Folder, name: str, text: str) -> bool:
    """Write a small file in place, into the block that it has: the way that is left on a full disk. False if it does
    not fit."""
    data = text.encode("utf-8", "backslashreplace")
    descriptor = folder.open(name, os.O_WRONLY)
    try:
        blocks = -(-os.fstat(descriptor).st_size // _BLOCK_BYTES)
        if len(data) > blocks * _BLOCK_BYTES:
            return False
        write_at(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
        return True
    finally:
        os.close(descriptor)


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


def write_at(descriptor: int, data: bytes, offset: int) -> None:
    """os.write at a place of its own."""
    os.lseek(descriptor, offset, os.SEEK_SET)
    write_all(descriptor, data)


def read_at(descriptor: int, count: int, offset: int) -> bytes:
    """So many bytes from there on; fewer only where the file ends."""
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, count)
