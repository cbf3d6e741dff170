"""Tensors as numbered .npy files: `{folder}/{id}_{name}[.key…][_{suffix}].npy`. Knows no framework.

The number is taken when a value is saved, and counts all files of the process; in a distributed run the files lie under
`rank{R}`. What is saved is the value at that time; a thread writes it. A wrong argument raises; what goes wrong
afterwards is said once, and the program goes on.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tensorprobe.capture import process
from tensorprobe.capture.deferral import Deferral
from tensorprobe.capture.failure import Failures, ProgramError
from tensorprobe.capture.framework import Undo
from tensorprobe.capture.message import show_messages
from tensorprobe.capture.npy import write_npy
from tensorprobe.capture.save_target import PRINT_MARK, SaveTarget
from tensorprobe.capture.tensor_queue import QUEUE_BYTES, TensorQueue
from tensorprobe.model.name import slot_file_name
from tensorprobe.store.folder import Folder
from tensorprobe.store.rank_lock import RankLock

logger = logging.getLogger("tensorprobe")

Array = np.ndarray[Any, Any]

_SHOWN_NAMES = 5


@dataclass(frozen=True, slots=True)
class Content:
    """The elements of a tensor as they were; they may come to the host only in the thread that writes them."""

    size_bytes: int
    array: Callable[[], Array]


@dataclass(frozen=True)
class TensorKind:
    """What must be known of the tensors of a framework."""

    types: tuple[type, ...]
    differentiable: type
    copy_content: Callable[[Any], Content]
    describe: Callable[[Any], str]
    current_rank: Callable[[], int | None]
    takes_part: Callable[[], bool]
    """Is this process one of those that compute?"""
    watch_gradient: Callable[[Any, Receive, LeafWatches, Hashable], bool]
    """Has each gradient of a tensor received when it comes; False if none will."""
    finish: Callable[[], None]
    """Returns when everything that was asked for is computed."""


Receive = Callable[[Any], None]


class NumberedFiles:
    """The files of a process, and their count."""

    def __init__(self) -> None:
        self.leaves = LeafWatches()
        self._failures = Failures()
        self._queue = TensorQueue(write_content, QUEUE_BYTES, self._failures)
        self._work = Deferral()
        self._next_id = 0
        self._places: dict[tuple[Path, int | None], str | None] = {}
        self._locks: list[RankLock] = []
        self._said: set[str] = set()
        self._kinds: list[TensorKind] = []
        self._is_followed = False
        self._is_recording = False
        self._writes_at_once = False

    def save(self, kind: TensorKind, tensor: Any, target: SaveTarget, path: str) -> None:
        """Save a tensor, at this path in the data of the call."""
        title = target.title(path)
        try:
            if not kind.takes_part():
                return
            if target.is_print:
                print(f"{PRINT_MARK}{title} {kind.describe(tensor)}", flush=True)
            else:
                self.save_content(kind, target.folder, title, kind.copy_content(tensor))
        except ProgramError as error:
            raise error.error from None
        except Exception as error:
            self._failures.note(f"{title} in {target.folder}", error)

    def save_content(self, kind: TensorKind, folder: str, title: str, content: Content) -> None:
        """Give the content of a tensor its number and have it written."""
        rank = kind.current_rank()
        with self._work:
            self._follow_process(kind)
            place = self._find_place(Path(os.path.abspath(folder)), rank)  # noqa: PTH100  resolve() asks the disk
            name = slot_file_name(f"{self._next_id}_{title}", "npy")
            self._next_id += 1
            if self._writes_at_once:
                self._queue.write_tensor(name, content, place)
            else:
                self._queue.put_tensor(name, content, content.size_bytes, place)

    def save_array(self, kind: TensorKind, folder: str, title: str, array: Array) -> None:
        """The same for an array that something else has taken, and that is ours."""
        try:
            self.save_content(kind, folder, title, Content(array.nbytes, lambda: array))
        except Exception as error:
            self._failures.note(f"{title} in {folder}", error)

    def expect(self, kind: TensorKind) -> None:
        """Something will be saved from a graph, which may still run when the process ends."""
        with self._work:
            self._follow_process(kind)

    def note_failure(self, what: str, error: Exception) -> None:
        self._failures.note(what, error)

    def say_once(self, text: str) -> None:
        show_messages()
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)

    def drain(self) -> None:
        """Return when everything that was saved so far is computed and written."""
        for kind in list(self._kinds):
            kind.finish()
        self._queue.drain()

    # what a process asks of those who write

    def close(self, ending: str | None = None) -> None:
        """The process ends: write what waits, and whatever comes later at once."""
        for kind in list(self._kinds):
            try:
                kind.finish()
            except Exception as error:  # the program's own, which it was told, or will be
                logger.debug("waiting for results at the end: %s", error)
        self._writes_at_once = True  # before the queue is closed: other threads may go on for ever
        self._queue.close()
        if self._failures.count:
            logger.error("tensors that could not be saved in this process: %d", self._failures.count)
            self._failures.restart()
        for lock in self._locks:
            lock.release()
        self._let_go()

    def abandon(self) -> None:
        """In a forked child, which has neither the thread nor the folders of its parent: begin anew."""
        self._queue.abandon()
        self._work = Deferral()
        self.leaves.renew_lock()
        self._next_id = 0
        self._writes_at_once = True  # many a child ends without any farewell
        self._let_go()
        self._is_followed = False

    @property
    def is_started(self) -> bool:
        """No window is open: others may open theirs."""
        return False

    def defer(self, action: Callable[[], None]) -> bool:
        return self._work.defer(action)

    def _let_go(self) -> None:
        self._locks.clear()
        self._places.clear()
        self._is_recording = False
        process.end_recording(self)

    def _follow_process(self, kind: TensorKind) -> None:
        if kind not in self._kinds:
            self._kinds.append(kind)
        if not self._is_followed:
            self._is_followed = True
            show_messages()
            process.follow(self)
        if not self._is_recording and not self._writes_at_once and _is_main_thread():
            self._is_recording = True
            process.begin_recording(self)

    def _find_place(self, path: Path, rank: int | None) -> Folder:
        """Opened anew for each file: the folder may have been moved since the last one."""
        folder = Folder(path)
        folder.make()
        is_known = (path, rank) in self._places
        if not is_known:
            lock = RankLock(path, rank)
            self._locks.append(lock)
            has_own_folder = lock.is_second or rank is not None
            self._places[(path, rank)] = lock.name if has_own_folder else None
        name = self._places[(path, rank)]
        place = folder if name is None else folder.child(name)
        place.make()
        if not is_known:
            self._say_what_is_there(place)
        return place

    def _say_what_is_there(self, place: Folder) -> None:
        names = sorted((name for name in place.names() if name.endswith(".npy")), key=_number_first)
        if names:
            shown = ", ".join(names[:_SHOWN_NAMES]) + (", …" if len(names) > _SHOWN_NAMES else "")
            self.say_once(
                f"{place.path} holds {len(names)} .npy file{'s' * (len(names) > 1)} of an earlier run ({shown}): "
                "files that get the same name now are replaced, the others stay"
            )


class LeafWatches:
    """Leaves, such as weights, that live on and are waited for: each call of save_grad waits for one backward."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, LeafWatch] = {}
        self._lock = threading.Lock()

    def wait(self, key: Hashable) -> LeafWatch | None:
        """Wait for one gradient more; a new watch where this leaf had none, which the caller then installs."""
        with self._lock:
            watch = self._waiting.get(key)
            if watch is not None:
                watch.count += 1
                return None
            watch = self._waiting[key] = LeafWatch(self, key)
            return watch

    def note_gradient(self, watch: LeafWatch) -> bool:
        with self._lock:
            watch.count -= 1
            return watch.count >= 0

    def end_if_done(self, watch: LeafWatch) -> None:
        with self._lock:
            if watch.count > 0:
                return
            self._waiting.pop(watch.key, None)
            undo, watch.undo, watch.held = watch.undo, None, None
        if undo is not None:
            undo()

    def renew_lock(self) -> None:
        self._lock = threading.Lock()


class LeafWatch:
    """A hook on a leaf, and what must stay alive for it."""

    def __init__(self, watches: LeafWatches, key: Hashable) -> None:
        self.key = key
        self.count = 1
        self.held: Any = None
        self.undo: Undo | None = None
        self._watches = watches

    def note_gradient(self) -> bool:
        """A gradient has come; False if none is waited for any more: a backward that failed has left the hook."""
        return self._watches.note_gradient(self)

    def end_if_done(self) -> None:
        """Take the hook back if no gradient is waited for any more."""
        self._watches.end_if_done(self)


def write_content(content: Content, file: BinaryIO) -> None:
    array = np.asarray(content.array(), order="C")
    write_npy(file, array.dtype, array.shape, array.data if array.size else b"")


def _number_first(name: str) -> tuple[int, int, str]:
    number = name.partition("_")[0]
    return (0, int(number), name) if number.isascii() and number.isdecimal() else (1, 0, name)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
