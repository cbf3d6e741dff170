"""Files and folders of a dump, on this machine or in a store: the same few questions, asked by path.

The path of what lies in a store is that of its copy, which need not be there yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tensorprobe.model.url import read_path, read_url
from tensorprobe.store import cache, mirror
from tensorprobe.store.mirror import FileId, mirror_of
from tensorprobe.store.remote import StoreError


def locate(path: str | os.PathLike[str]) -> Path:
    """The path of what the user has named: for an address, where its copies are."""
    url = read_url(path)
    return read_path(path) if url is None else mirror.open_url(url)


def show(path: Path) -> str:
    """As the user knows it."""
    return cache.url_of(path) or str(path)


def is_stored(path: Path) -> bool:
    """Does it lie in a store?"""
    return cache.url_of(path) is not None


def is_file(path: Path) -> bool:
    source = mirror_of(path)
    if source is None:
        return path.is_file()
    entry = source.entry(path)
    return entry is not None and not entry.is_folder


def is_folder(path: Path) -> bool:
    source = mirror_of(path)
    return path.is_dir() if source is None else bool(source.entries(path))


def names(folder: Path) -> list[str]:
    """What is in a folder."""
    source = mirror_of(folder)
    return sorted(entry.name for entry in folder.iterdir()) if source is None else sorted(source.entries(folder))


def size_bytes(path: Path) -> int:
    """0 for a file that is not there."""
    source = mirror_of(path)
    if source is not None:
        entry = source.entry(path)
        return 0 if entry is None else entry.size_bytes
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0


def identify(path: Path) -> FileId | None:
    """What two names of one file have in common, and no other file has; None for one that is not there. A store has
    one name for each file."""
    source = mirror_of(path)
    if source is not None:
        entry = source.entry(path)
        return None if entry is None else (-1, entry.stamp_ns)
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if status.st_ino else None


def identify_content(path: Path) -> FileId | None:
    """The same for files that hold the same, where a store knows that they do."""
    source = mirror_of(path)
    entry = None if source is None else source.entry(path)
    return identify(path) if entry is None else (-2, entry.content_id)


def bring(path: Path) -> Path:
    """The same path, with the file there if there is one: it is copied from its store."""
    source = mirror_of(path)
    if source is not None and not source.has_copy(path):
        try:
            source.copy(path)
        except FileNotFoundError:
            if source.entries(path.parent):  # else it is a store that only the process that sent us here can see
                path.unlink(missing_ok=True)
    return path


def bring_all(paths: Iterable[Path]) -> None:
    """Many at once. What cannot be brought is asked for again, and told of, by whoever opens it."""

    def attempt(path: Path) -> None:
        with suppress(OSError, StoreError):
            source = mirror_of(path)
            if source is not None and not source.has_copy(path):
                source.copy(path, stored)

    stored = [path for path in dict.fromkeys(paths) if is_stored(path)]
    mirror.in_threads(attempt, stored)


def list_all(folders: Iterable[Path]) -> None:
    """Look into many folders of a store at once, before each is asked for."""
    sources = [(source, folder) for folder in folders if (source := mirror_of(folder)) is not None]
    mirror.in_threads(lambda both: both[0].entries(both[1]), sources)
