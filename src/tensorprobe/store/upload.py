"""A rank folder of a finished step, copied into a store.

Tensors come first and run.json last, so that what can be read there is whole. What has several names here is sent once
and copied over there. Nothing counts as sent before the store has listed it with its size. Only then is it removed
here, if that is asked for: all but run.json, by which other processes of the same run find its id.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorprobe.store import earlier_run, layout, remote
from tensorprobe.store.folder import Folder
from tensorprobe.store.mirror import in_threads
from tensorprobe.store.own_name import TENSOR_FOLDERS, is_own_name, is_tensor_file
from tensorprobe.store.remote import StoreError

logger = logging.getLogger("tensorprobe")

_BUCKETS = ("s3", "s3a", "gs", "gcs", "oss", "az", "abfs", "abfss")


@dataclass(frozen=True)
class Sent:
    """What went into the store."""

    files: int
    size_bytes: int


class Target:
    """The address of a dump_path in a store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._filesystem = remote.open_filesystem(url)

    def check(self) -> None:
        """StoreError if nothing can be put there, as far as that is known before something is."""
        protocol, _, rest = self.url.partition("://")
        bucket = f"{protocol}://{rest.partition('/')[0]}"
        if protocol not in _BUCKETS:
            return
        with remote.saying_why(self.url):
            if not self._filesystem.exists(bucket):
                raise StoreError(f"{self.url}: there is no {bucket}. Make it, or give one that exists.")

    def send(self, root: Path, places: Sequence[str], *, removes: bool = False) -> Sent:
        """Put the folder of one process in one step there; what an earlier run has left in its place goes."""
        folder = root.joinpath(*places)
        url = "/".join((self.url, *places))
        with remote.saying_why(url):
            sent = self._send(folder, url)
        if removes:
            _remove_sent(folder)
        return sent

    def replace(self, folder: Path, names: Sequence[str], gone: Sequence[str]) -> None:
        """Put these files there, and then remove those."""
        with remote.saying_why(self.url):
            for name in names:
                self._put(folder, self.url, name, None)
        for name in gone:
            self.remove(f"{self.url}/{name}")

    def remove(self, url: str) -> None:
        """Remove one file."""
        with remote.saying_why(url):
            self._filesystem.rm_file(self._place(url))

    def _send(self, folder: Path, url: str) -> Sent:
        names = sorted(_iter_names(folder), key=_order)
        firsts, links = _find_links(folder, names)
        last = [name for name in firsts if name == layout.RUN_FILE]
        others = [name for name in firsts if name not in last]
        # The first goes alone: where the store cannot be reached, that is known before all of them have tried.
        for part in (others[:1], others[1:], links, last):
            in_threads(lambda name: self._put(folder, url, name, links.get(name)), part)
        sizes = {name: (folder / name).stat().st_size for name in names}
        self._check_sizes(url, sizes)
        return Sent(len(names), sum(sizes.values()))

    def _put(self, folder: Path, url: str, name: str, first: str | None) -> None:
        target = self._place(f"{url}/{name}")
        if first is not None and self._copy(self._place(f"{url}/{first}"), target):
            return
        self._filesystem.makedirs(target.rpartition("/")[0], exist_ok=True)
        self._filesystem.put_file(str(folder / name), target)

    def _copy(self, source: str, target: str) -> bool:
        """Over there; not every store can, and then the file is sent once more."""
        try:
            self._filesystem.cp_file(source, target)
        except Exception as error:
            logger.debug("%s is not copied inside its store: %s", source, error)
            return False
        return True

    def _check_sizes(self, url: str, sizes: dict[str, int]) -> None:
        self._filesystem.invalidate_cache()
        there = self._list(url)
        wrong = [name for name, size in sizes.items() if there.get(name) != size]
        if wrong:
            raise StoreError(f"{url}/{wrong[0]} did not arrive whole.")
        for name in there.keys() - sizes.keys():
            if is_own_name(name) or is_tensor_file(name):
                self._filesystem.rm_file(self._place(f"{url}/{name}"))  # of an earlier run

    def _list(self, url: str, below: str = "") -> dict[str, int]:
        """The files of a rank folder in the store, and of its folders of tensors, with their sizes."""
        found = {}
        for info in self._filesystem.ls(self._place(f"{url}/{below}".rstrip("/")), detail=True):
            name = str(info["name"]).rstrip("/").rpartition("/")[2]
            if info.get("type") != "directory":
                found[f"{below}/{name}".lstrip("/")] = int(info.get("size") or 0)
            elif not below and name in TENSOR_FOLDERS:
                found.update(self._list(url, name))
        return found

    def _place(self, url: str) -> str:
        return remote.strip_protocol(self._filesystem, url)


def find_unsent(root: Path) -> list[tuple[str, ...]]:
    """The folders below a dump_path that hold records: of what was sent only run.json is left."""
    folder = Folder(root)
    places = [found.places for found in earlier_run.find_folders(folder)]
    return [one for one in places if set(earlier_run.open_below(folder, one).names()) - {layout.RUN_FILE}]


def _iter_names(folder: Path) -> Iterator[str]:
    """The files of the dump, from its folder down; a link is none of them."""
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink() or entry.name.endswith(layout.TEMPORARY_SUFFIX):
            continue
        if entry.name in TENSOR_FOLDERS and entry.is_dir():
            for file in sorted(entry.iterdir()):
                if file.is_file() and not file.is_symlink() and not file.name.endswith(layout.TEMPORARY_SUFFIX):
                    yield f"{entry.name}/{file.name}"
        elif is_own_name(entry.name) and entry.is_file():
            yield entry.name


def _order(name: str) -> tuple[bool, bool, str]:
    return "/" not in name, name == layout.RUN_FILE, name


def _find_links(folder: Path, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The first name of each file; and of each further name, which is its first."""
    firsts: dict[Any, str] = {}
    links: dict[str, str] = {}
    for name in names:
        status = (folder / name).stat()
        key = (status.st_dev, status.st_ino) if status.st_nlink > 1 else name
        first = firsts.setdefault(key, name)
        if first != name:
            links[name] = first
    return list(firsts.values()), links


def _remove_sent(folder: Path) -> None:
    for name in _iter_names(folder):
        if name != layout.RUN_FILE:
            (folder / name).unlink(missing_ok=True)
    for name in TENSOR_FOLDERS:
        with suppress(OSError):  # none, or something else is in it
            (folder / name).rmdir()
