"""Files of a store, listed folder by folder and copied when they are asked for.

A listing is asked for once in the life of a process, and so is what a folder holds: a run that is still written is seen
as it was when it was opened. A copy carries the stamp of its original in its time of modification; where the original
has changed since, it is copied again.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorprobe.store import cache, layout, remote

_THREADS = 16
_CONTENT_KEYS = ("ETag", "etag", "md5Hash", "content_md5")
"""Where a store says what a file holds; two files with one of these in common hold the same."""
FileId = tuple[int, int]


@dataclass(frozen=True)
class Entry:
    """One name in a folder of a store."""

    is_folder: bool
    size_bytes: int
    stamp_ns: int
    """Another number whenever the file is written anew."""
    content_id: int


class Mirror:
    """One file system and what is known of it."""

    def __init__(self, url: str) -> None:
        self._filesystem = remote.open_filesystem(url)
        self._listings: dict[Path, dict[str, Entry]] = {}

    def forget(self, folder: Path) -> None:
        """What lies below is looked at again."""
        self._filesystem.invalidate_cache()
        for known in [known for known in self._listings if known.is_relative_to(folder)]:
            del self._listings[known]

    def entries(self, folder: Path) -> Mapping[str, Entry]:
        """What is in a folder; empty if it is not there."""
        if folder not in self._listings:
            self._listings[folder] = self._list(folder)
        return self._listings[folder]

    def entry(self, path: Path) -> Entry | None:
        return self.entries(path.parent).get(path.name)

    def copy(self, path: Path, spared: Iterable[Path] = ()) -> None:
        """Copy the original of this file here; FileNotFoundError if there is none."""
        url = _url_of(path)
        temporary = path.with_name(f".{os.getpid()}-{threading.get_ident()}-{path.name[-100:]}.tmp")
        entry = self.entry(path)
        if entry is None or entry.is_folder:
            raise FileNotFoundError(f"{url} does not exist")
        layout.make_folder(path.parent)
        _budget.spend(entry.size_bytes, {path, *spared})
        try:
            with remote.saying_why(url):
                self._filesystem.get_file(remote.strip_protocol(self._filesystem, url), str(temporary))
            temporary.chmod(layout.FILE_MODE)
            status = temporary.stat()
            os.utime(temporary, ns=(status.st_atime_ns, entry.stamp_ns))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def has_copy(self, path: Path) -> bool:
        """Is there one, of what is in the store now? It counts as used."""
        entry = self.entry(path)
        try:
            status = path.stat()
        except OSError:
            return False
        if entry is None or (status.st_size, status.st_mtime_ns) != (entry.size_bytes, entry.stamp_ns):
            return False
        os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))
        return True

    def _list(self, folder: Path) -> dict[str, Entry]:
        url = _url_of(folder)
        try:
            with remote.saying_why(url):
                found = self._filesystem.ls(remote.strip_protocol(self._filesystem, url), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        entries = {}
        own = remote.strip_protocol(self._filesystem, url).rstrip("/")
        for info in found:
            place = str(info["name"]).rstrip("/")
            name = place.rpartition("/")[2]
            if place != own and _is_plain(name) and not info.get("islink"):  # a link may lead out of the dump
                entries[name] = _read_entry(info, place)
        return entries


def _read_entry(info: Mapping[str, Any], place: str) -> Entry:
    stamp = {key: value for key, value in info.items() if key not in ("islink", "nlink", "ino")}
    content = next((f"{key} {info[key]} {info.get('size')}" for key in _CONTENT_KEYS if info.get(key)), None)
    text = repr(sorted(stamp.items(), key=lambda item: item[0]))
    return Entry(
        info.get("type") == "directory", int(info.get("size") or 0), _hash(text), _hash(content or f"{place} {text}")
    )


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and not set("\\\0") & set(name)


def _url_of(path: Path) -> str:
    url = cache.url_of(path)
    assert url is not None, path
    return url


_budget = cache.Budget()
_mirrors: dict[str, Mirror] = {}
_lock = threading.Lock()


def mirror_of(path: Path) -> Mirror | None:
    """Where this file, or folder, is copied from; None for one of this machine."""
    url = cache.url_of(path)
    if url is None:
        return None
    protocol, _, rest = url.partition("://")
    key = f"{protocol}://{rest.partition('/')[0]}"
    with _lock:
        if key not in _mirrors:
            _mirrors[key] = Mirror(url)
        return _mirrors[key]


def open_url(url: str) -> Path:
    """Where the copies of what lies at an address will be; what is known of it from before is forgotten."""
    path = cache.place_of(url)
    mirror = mirror_of(path)
    assert mirror is not None
    mirror.forget(path.parent)
    return path


def in_threads(action: Any, items: Iterable[Any]) -> list[Any]:
    """An action on each of them, many at once: a store answers many questions in the time of one."""
    items = list(items)
    if len(items) < 2:
        return [action(item) for item in items]
    with ThreadPoolExecutor(min(_THREADS, len(items)), thread_name_prefix="tensorprobe-store") as pool:
        return list(pool.map(action, items))
