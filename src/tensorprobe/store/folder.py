"""A folder of a dump, held open: no link below the dump_path is followed.

A dump_path may be open to others, who may put a link where a file or a folder of ours belongs. So a folder is opened
part by part, each from the one above it, and never through a link; its files are then reached from the open folder and
not by their path. The dump_path itself may be a link, or lie below one: that is the user's choice. Where the system
cannot open a file from a folder (Windows) each folder is looked at before it is used.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tensorprobe.store import layout

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # a named pipe would be waited for
_OPEN_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_has_descriptors = bool(_NO_FOLLOW) and hasattr(os, "O_DIRECTORY") and os.open in os.supports_dir_fd


class LinkError(OSError):
    """A link, or something else that is not ours, lies where we write."""


_open: weakref.WeakSet[_Descriptor] = weakref.WeakSet()


class _Descriptor:
    """An open folder: closed when nobody uses it any more, so that no thread is left with a number that has become
    another file's. The number is None where folders cannot be opened."""

    __slots__ = ("__weakref__", "number")

    def __init__(self, number: int | None) -> None:
        self.number = number
        if number is not None:
            _open.add(self)

    def __del__(self) -> None:
        if self.number is not None:
            os.close(self.number)


_folders: weakref.WeakSet[Folder] = weakref.WeakSet()


class Folder:
    """The folder at `path`, which is made when the first file is; below `parent`, no link is followed to it."""

    def __init__(self, path: Path, parent: Folder | None = None) -> None:
        self.path = path
        self._parent = parent
        self._held: _Descriptor | None = None
        _folders.add(self)
        self._refusal: OSError | None = None

    def child(self, name: str) -> Folder:
        return Folder(self.path / name, self)

    def refuse(self, error: OSError) -> None:
        """From now on nothing is done here, nor in the folders below: each attempt raises `error`."""
        self._refusal = error

    def make(self) -> None:
        """Make it, for its owner only; nothing to do if it is there."""
        self._hold(makes=True)

    def create(self, name: str) -> int:
        """A descriptor of a new and empty file, for its owner only. An older file is removed, not written into."""
        for is_last in (False, True):
            try:
                return self._create(name)
            except FileNotFoundError:  # somebody has removed the folder
                if is_last:
                    raise
                self._forget()
            except FileExistsError:
                if is_last or not self.is_file(name):
                    raise self._refused(name) from None
                self.unlink(name)
        raise AssertionError  # the second attempt has returned or raised

    def open(self, name: str, flags: int) -> int:
        """A descriptor of a file that is there, or with O_CREAT may be; only of a plain file."""
        held = self._hold(makes=bool(flags & os.O_CREAT))
        flags |= _NO_FOLLOW | _NO_WAIT | getattr(os, "O_CLOEXEC", 0)
        try:
            descriptor = os.open(self._at(name, held), flags, layout.FILE_MODE, dir_fd=held.number)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise self._refused(name) from None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self._refused(name)
        return descriptor

    @contextmanager
    def open_whole(self, name: str) -> Iterator[BinaryIO]:
        """A file that appears when the block ends well, and replaces an older one."""
        temporary = layout.temporary_name(name)
        try:
            with os.fdopen(self.create(temporary), "wb") as file:
                yield file
            self.replace(temporary, name)
        except BaseException:
            with suppress(OSError):
                self.unlink(temporary)
            raise

    def replace(self, old: str, new: str) -> None:
        """Rename a file; it takes the place of what has the new name."""
        held = self._hold()
        os.replace(self._at(old, held), self._at(new, held), src_dir_fd=held.number, dst_dir_fd=held.number)

    def link(self, existing: str, new: str) -> None:
        """Give a file a further name, which replaces what is there; a copy where links fail (another file system,
        65,000 links on ext4)."""
        try:
            self._link(existing, new)
            return
        except OSError:  # it is there already, or links fail
            temporary = layout.temporary_name(new)
        self.unlink(temporary)
        try:
            self._link(existing, temporary)
        except OSError:
            with (
                os.fdopen(self.open(existing, os.O_RDONLY), "rb") as source,
                os.fdopen(self.create(temporary), "wb") as copy,
            ):
                shutil.copyfileobj(source, copy, 1 << 20)
        self.replace(temporary, new)

    def unlink(self, name: str) -> None:
        """Remove a file, or a link and not what it leads to; nothing to do if there is none."""
        with suppress(FileNotFoundError):
            held = self._hold()
            os.unlink(self._at(name, held), dir_fd=held.number)

    def remove_folder(self, name: str) -> bool:
        """Remove a folder in this one, if it is empty."""
        try:
            held = self._hold()
            os.rmdir(self._at(name, held), dir_fd=held.number)
        except OSError:  # something is in it, or it is not there
            return False
        return True

    def remove(self) -> None:
        """Remove this folder, and then the one above it, if there is nothing in them; never the first, which is the
        user's."""
        if self._parent is not None and self._parent.remove_folder(self.path.name):
            self._held = None
            self._parent.remove()

    def move(self, name: str, target: Folder) -> None:
        """Move what has this name into another folder; OSError if there is such a thing there already."""
        held, other = self._hold(), target._hold(makes=True)
        os.rename(self._at(name, held), target._at(name, other), src_dir_fd=held.number, dst_dir_fd=other.number)

    def names(self) -> list[str]:
        """What is in it; empty if it is not there."""
        try:
            held = self._hold()
            return sorted(os.listdir(self.path if held.number is None else held.number))  # noqa: PTH208  by descriptor
        except FileNotFoundError:
            return []

    def is_file(self, name: str) -> bool:
        """A plain file; a link is none."""
        return stat.S_ISREG(self._mode(name))

    def is_folder(self, name: str) -> bool:
        """A folder; a link to one is none."""
        return stat.S_ISDIR(self._mode(name))

    def exists(self, name: str) -> bool:
        """Anything of this name, even a link that leads nowhere."""
        return self._mode(name) != 0

    def status(self, name: str) -> os.stat_result:
        """Of a file or a link itself; FileNotFoundError if there is none."""
        held = self._hold()
        return os.stat(self._at(name, held), dir_fd=held.number, follow_symlinks=False)

    def read(self, name: str, limit_bytes: int) -> bytes:
        """The beginning of a file, or all of it."""
        with os.fdopen(self.open(name, os.O_RDONLY), "rb") as file:
            return file.read(limit_bytes)

    def _create(self, name: str) -> int:
        held = self._hold(makes=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | getattr(os, "O_CLOEXEC", 0)
        return os.open(self._at(name, held), flags, layout.FILE_MODE, dir_fd=held.number)

    def _link(self, existing: str, new: str) -> None:
        held = self._hold()
        if held.number is None:
            os.link(self._at(existing, held), self._at(new, held))
        else:
            os.link(existing, new, src_dir_fd=held.number, dst_dir_fd=held.number, follow_symlinks=False)

    def _mode(self, name: str) -> int:
        try:
            return self.status(name).st_mode
        except FileNotFoundError:
            return 0

    def _hold(self, *, makes: bool = False) -> _Descriptor:
        if self._refusal is not None:
            raise self._refusal
        above = self._parent._hold(makes=makes) if self._parent is not None else None
        held = self._held  # another thread may find that the folder was removed
        if held is None:
            held = self._open_first(makes) if above is None else self._open_below(above, makes)
            if held.number is not None:  # else looked at, and not held: it is looked at again the next time
                self._held = held
        return held

    def _open_first(self, makes: bool) -> _Descriptor:
        if makes:
            layout.make_folder(self.path)
        if not _has_descriptors:
            self.path.stat()
            return _Descriptor(None)
        return _Descriptor(os.open(self.path, _OPEN_FOLDER))

    def _open_below(self, above: _Descriptor, makes: bool) -> _Descriptor:
        name = str(self.path) if above.number is None else self.path.name
        if makes:
            with suppress(FileExistsError):
                os.mkdir(name, layout.FOLDER_MODE, dir_fd=above.number)
        found = os.stat(name, dir_fd=above.number, follow_symlinks=False)
        if _is_junction(found):
            raise _explain(self.path, stat.S_IFLNK)
        if not stat.S_ISDIR(found.st_mode):
            raise _explain(self.path, found.st_mode)
        if above.number is None:
            return _Descriptor(None)
        return _Descriptor(os.open(name, _OPEN_FOLDER | _NO_FOLLOW, dir_fd=above.number))

    def _at(self, name: str, held: _Descriptor) -> str:
        return name if held.number is not None else str(self.path / name)

    def _forget(self) -> None:
        self._held = None
        if self._parent is not None:
            self._parent._forget()

    def _refused(self, name: str) -> OSError:
        return _explain(self.path / name, self._mode(name))


def _abandon_all() -> None:
    """In a forked child: the folders are the parent's, and are opened again where the child needs them."""
    for folder in list(_folders):
        folder._held = None
    for held in list(_open):  # one that a thread of the parent was using is used by nobody here
        number, held.number = held.number, None
        if number is not None:
            os.close(number)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_abandon_all)


def _is_junction(found: os.stat_result) -> bool:
    """A link to a folder, as Windows has it besides: it passes for a folder."""
    return getattr(found, "st_reparse_tag", 0) == getattr(stat, "IO_REPARSE_TAG_MOUNT_POINT", -1)


def _explain(path: Path, mode: int) -> OSError:
    """Why nothing is written here, in words."""
    if stat.S_ISLNK(mode):
        text = f"{path} is a link, and no link inside a dump_path is followed: remove it, or give another dump_path"
    elif stat.S_ISREG(mode):
        return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    else:
        text = f"{path} is not a plain file: remove it, or give another dump_path"
    return LinkError(errno.ELOOP, text)
