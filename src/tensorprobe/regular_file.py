"""Opening a file of which only the name is known: it may be a pipe, which waits for ever, or a device without end."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

NOT_REGULAR = "not a regular file"
NO_NAME = "no file can have this name"


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, open for reading; OSError, whose `strerror` says why, for everything else."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(path, flags)
    except ValueError as error:  # a NUL in it, or half of a surrogate pair
        raise OSError(errno.EINVAL, NO_NAME) from error
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, NOT_REGULAR)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
