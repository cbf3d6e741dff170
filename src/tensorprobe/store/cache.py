"""Copies of files from stores, in a folder of this machine: memory is mapped from files that are here.

The folder mirrors addresses, `{cache}/read/s3/bucket/run/step0/rank/dump.json`, so that any process can tell from the
place of a copy where it comes from. All copies together are bounded: those that were not used for the longest time go
first. A copy that is open stays readable when it goes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path

from tensorprobe.errors import UsageError

FOLDER_VARIABLE = "TENSORPROBE_CACHE"
SIZE_VARIABLE = "TENSORPROBE_CACHE_GB"
_DEFAULT_GB = 20.0
_KEPT_SHARE = 0.8
"""How much of the bound is left after copies have gone, so that they do not go one by one."""


def cache_folder() -> Path:
    """Where all of it lies."""
    return _resolve(os.environ.get(FOLDER_VARIABLE), os.environ.get("XDG_CACHE_HOME"))


@lru_cache(maxsize=8)
def _resolve(given: str | None, base: str | None) -> Path:
    """Asked for every file of a dump."""
    if given:
        return Path(given).expanduser().resolve()
    return ((Path(base) if base else Path.home() / ".cache") / "tensorprobe").resolve()


def copies_folder() -> Path:
    return cache_folder() / "read"


@lru_cache(maxsize=8)
def _copies_root(given: str | None, base: str | None) -> str:
    """How the paths of all copies begin."""
    return f"{_resolve(given, base) / 'read'}{os.sep}"


def spool_of(url: str) -> Path:
    """Where what is recorded for an address waits to be sent there. It is never removed to make room."""
    return cache_folder() / "upload" / place_of(url).relative_to(copies_folder())


def place_of(url: str) -> Path:
    """Where the copy of an address lies."""
    protocol, _, rest = url.partition("://")
    parts = [part for part in rest.split("/") if part]
    if any(part in (".", "..") or "\0" in part for part in parts):
        raise UsageError(f"{url}: give an address without . and .. in it.")
    return copies_folder().joinpath(protocol, *parts)


def url_of(path: Path) -> str | None:
    """The address of which this is, or would be, a copy; None for any other file."""
    root = _copies_root(os.environ.get(FOLDER_VARIABLE), os.environ.get("XDG_CACHE_HOME"))
    if not str(path).startswith(root):  # asked for every tensor: pathlib would take ten times as long
        return None
    protocol, *parts = Path(str(path)[len(root) :]).parts
    return f"{protocol}://{'/'.join(parts)}"


class Budget:
    """Bounds what the copies take. Files that a process has just asked for are spared."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used_bytes: int | None = None

    def spend(self, size_bytes: int, spared: Collection[Path]) -> None:
        """So much is about to be added."""
        with self._lock:
            if self._used_bytes is None:
                self._used_bytes = sum(size for _, size, _ in _iter_copies())
            self._used_bytes += size_bytes
            limit_bytes = read_limit_bytes()
            if self._used_bytes > limit_bytes:
                self._used_bytes = size_bytes + _remove_oldest(int(limit_bytes * _KEPT_SHARE) - size_bytes, spared)


def read_limit_bytes() -> int:
    """How much all copies may take."""
    given = os.environ.get(SIZE_VARIABLE, "")
    try:
        size_gb = float(given or _DEFAULT_GB)
    except ValueError:
        size_gb = -1.0
    if not size_gb > 0:
        raise UsageError(f"{SIZE_VARIABLE} is {given!r}: give the gigabytes that copies from stores may take, or none.")
    return int(size_gb * 1e9)


def _remove_oldest(kept_bytes: int, spared: Collection[Path]) -> int:
    """What is left, in bytes."""
    copies = sorted(_iter_copies(), key=lambda copy: copy[0])
    left = sum(size for _, size, _ in copies)
    for _, size, path in copies:
        if left <= kept_bytes:
            break
        if path not in spared:
            path.unlink(missing_ok=True)
            left -= size
    return left


def _iter_copies() -> Iterator[tuple[float, int, Path]]:
    """When each was last used, its size, its place."""
    for folder, _, names in os.walk(copies_folder()):
        for name in names:
            path = Path(folder, name)
            try:
                status = path.stat()
            except OSError:  # another process has removed it
                continue
            yield status.st_atime, status.st_size, path
