"""Tensor files are written by one thread, through a bounded queue: the training thread waits only when the disk cannot
follow.

Each file appears whole (written aside, then renamed). A value that has several names is written once; the other names
are hard links, or copies where the file system has no links or no more of them. Files appear in the order in which they
were put, so that a record can wait until those that it names are there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from tensorprobe.capture.failure import Failures
from tensorprobe.capture.npy import write_npy
from tensorprobe.store.folder import Folder

QUEUE_BYTES = 256 * 2**20
"""How much may wait when tensor files follow their calls."""
ASYNC_QUEUE_BYTES = 4 * 2**30
"""How much may wait with async_dump, where files may be written as late as the end of the step."""

_TASK_BYTES = 1024
"""What a task takes besides its tensor: links are bounded too."""

WriteFile = Callable[[Any, BinaryIO], None]


class Limit(Protocol):
    """How much may be written."""

    def admits(self, size_bytes: int) -> bool:
        """May a file of this size be written?"""


class TensorQueue:
    """Tasks in the order of the calls; one thread works them off."""

    def __init__(
        self, write_file: WriteFile, limit_bytes: int, failures: Failures, *, writes_at_once: bool = False
    ) -> None:
        self.writes_at_once = writes_at_once
        """Where every core computes, a thread that writes only stands in the way: what is on the host is written by the
        thread that computed it."""
        self._write_file = write_file
        self._failures = failures
        self._limit_bytes = limit_bytes
        self._tasks: deque[tuple[Callable[[], None], int]] = deque()
        self._waiting_bytes = 0
        self._is_busy = False
        self._put_count = 0
        self._done_count = 0
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._failed: dict[Path, Exception] = {}
        self._folder = Folder(Path())
        self.written_bytes = 0
        """How large the files are that were written; further names of one are not counted."""
        self.limit: Limit | None = None

    @property
    def folder(self) -> Folder:
        """Where the files of what comes next go."""
        return self._folder

    @folder.setter
    def folder(self, folder: Folder) -> None:
        self._folder = folder
        self._failed = {}

    def put_tensor(self, name: str, copy: Any, size_bytes: int, folder: Folder | None = None) -> None:
        """Write `copy` as `name`, into `folder` if one is given; waits while too much is in the queue."""
        place = folder or self.folder
        self._put(lambda: self._write(place, name, copy), size_bytes)

    def put_number(self, name: str, number: bool | int | float) -> None:
        """Write a plain number as a file `name` of numpy's."""
        folder, array = self.folder, np.asarray(number)
        self._put(lambda: self._write(folder, name, array, _write_array), 0)

    def write_tensor(self, name: str, content: Any, folder: Folder | None = None) -> bool:
        """Write `content` as `name`, now; False if that failed."""
        place = folder or self.folder
        return self._do(lambda: self._write(place, name, content))

    def put_link(self, existing: str, name: str) -> None:
        """Give the file `existing` a further name."""
        if existing != name:
            link = partial(self._link, self._folder, existing, name)
            if self.writes_at_once and self._put_count == self._done_count:
                self._do(link)
            else:
                self._put(link, 0)

    @property
    def waiting_bytes(self) -> int:
        """What is put and not yet on disk."""
        return self._waiting_bytes

    def admits(self, size_bytes: int) -> bool:
        """May a file of this size be put?"""
        return self.limit is None or self.limit.admits(size_bytes)

    @property
    def put_count(self) -> int:
        """How many files were put so far."""
        return self._put_count

    @property
    def done_count(self) -> int:
        """How many of them, from the first on, are on disk, or have failed and will never be."""
        return self._done_count

    def drain(self) -> None:
        """Wait until everything that was put is on disk."""
        with self._condition:
            while self._tasks or self._is_busy:
                self._condition.wait()

    def close(self) -> None:
        """Write what waits, and end the thread."""
        self.drain()
        with self._condition:
            thread, self._thread = self._thread, None
            self._condition.notify_all()
        if thread is not None:
            thread.join()

    def abandon(self) -> None:
        """In a forked child, which has no such thread: forget everything."""
        self._condition = threading.Condition()
        self._tasks.clear()
        self._thread = None
        self._waiting_bytes, self._is_busy = 0, False
        self._done_count = self._put_count

    def _do(self, task: Callable[[], None]) -> bool:
        try:
            task()
        except Exception as error:
            self._failures.note("a tensor file", error)
            return False
        return True

    def _put(self, task: Callable[[], None], tensor_bytes: int) -> None:
        size_bytes = tensor_bytes + _TASK_BYTES
        with self._condition:
            while self._waiting_bytes and self._waiting_bytes + size_bytes > self._limit_bytes:
                self._condition.wait()
            if not self._begin_work():
                return  # in the queue without a thread it would be waited for for ever
            self._tasks.append((task, size_bytes))
            self._waiting_bytes += size_bytes
            self._put_count += 1
            self._condition.notify_all()

    def _begin_work(self) -> bool:
        if self._thread is None:
            # A daemon: a thread that is none would keep the interpreter from reaching the exit handler that ends it.
            thread = threading.Thread(target=self._work, name="tensorprobe-files", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the process has as many as it may have
                self._failures.note("a tensor file", error)
                return False
            self._thread = thread
        return True

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            with self._condition:
                while not self._tasks:
                    if self._thread is not me:
                        return
                    self._condition.wait()
                task, size_bytes = self._tasks.popleft()
                self._is_busy = True
            self._do(task)
            del task
            with self._condition:
                self._waiting_bytes -= size_bytes
                self._is_busy = False
                self._done_count += 1
                self._condition.notify_all()

    def _write(self, folder: Folder, name: str, copy: Any, write_file: WriteFile | None = None) -> None:
        try:
            with folder.open_whole(name) as file:
                (write_file or self._write_file)(copy, file)
                self.written_bytes += file.tell()
        except Exception as error:
            self._failed[folder.path / name] = error
            raise

    def _link(self, folder: Folder, existing: str, new: str) -> None:
        failure = self._failed.get(folder.path / existing)
        if failure is not None:
            raise failure  # the same failure, and not that there is no such file
        folder.link(existing, new)


def _write_array(array: np.ndarray[Any, Any], file: BinaryIO) -> None:
    write_npy(file, array.dtype, array.shape, array.tobytes())
