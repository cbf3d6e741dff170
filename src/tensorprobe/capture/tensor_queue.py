"""Tensor files are written by threads of their own, through a bounded queue: the training thread waits only when the
disk cannot follow.

Each file appears whole (written aside, then renamed). A value that has several names is written once; the other names
are hard links, or copies where the file system has no links or no more of them. Files are counted in the order in which
they were put, so that a record can wait until those that it names are there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from tensorprobe.capture.failure import Failures
from tensorprobe.capture.framework import Framework
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


def make_queue(write_file: WriteFile, failures: Failures, framework: Framework, *, is_async: bool) -> TensorQueue:
    """The queue of a session. `is_async`: files may be written as late as the end of the step."""
    return TensorQueue(
        write_file,
        ASYNC_QUEUE_BYTES if is_async else QUEUE_BYTES,
        failures,
        writes_at_once=not is_async and not framework.has_idle_core(),
        count_writers=framework.count_writers,
    )


@dataclass(eq=False)
class _Task:
    """One file to be made."""

    number: int
    make: Callable[[], None]
    size_bytes: int
    path: Path
    needed: Path | None
    """A file that has to be there before."""

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.path,) if self.needed is None else (self.path, self.needed)


class TensorQueue:
    """Tasks in the order of the calls; threads work them off."""

    def __init__(
        self,
        write_file: WriteFile,
        limit_bytes: int,
        failures: Failures,
        *,
        writes_at_once: bool = False,
        count_writers: Callable[[], int] = lambda: 1,
    ) -> None:
        """`count_writers`: how many threads may write, asked when there is something to write."""
        self.writes_at_once = writes_at_once
        """Where every core computes, a thread that writes only stands in the way: what is on the host is written by the
        thread that computed it."""
        self._write_file = write_file
        self._failures = failures
        self._limit_bytes = limit_bytes
        self._count_writers = count_writers
        self._tasks: deque[_Task] = deque()
        self._begun: dict[Path, deque[_Task]] = {}
        """What was taken out of the queue and is not done yet, by the files that it makes or needs, in order: the first
        of them works, the others wait."""
        self._ready: deque[_Task] = deque()
        """What has waited, and need not any more."""
        self._working = 0
        self._waiting_bytes = 0
        self._put_count = 0
        self._done_count = 0
        self._done_early: set[int] = set()
        """The numbers of what is done, and something before it is not."""
        self._condition = threading.Condition()
        self._threads: list[threading.Thread] = []
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
        self._put(lambda: self._write(place, name, copy), size_bytes, place.path / name)

    def put_number(self, name: str, number: bool | int | float) -> None:
        """Write a plain number as a file `name` of numpy's."""
        folder, array = self.folder, np.asarray(number)
        self._put(lambda: self._write(folder, name, array, _write_array), 0, folder.path / name)

    def write_tensor(self, name: str, content: Any, folder: Folder | None = None) -> bool:
        """Write `content` as `name`, now; False if that failed."""
        place = folder or self.folder
        return self._do(lambda: self._write(place, name, content))

    def put_link(self, existing: str, name: str) -> None:
        """Give the file `existing` a further name."""
        if existing != name:
            folder = self._folder
            link = partial(self._link, folder, existing, name)
            if self.writes_at_once and self._put_count == self._done_count:
                self._do(link)
            else:
                self._put(link, 0, folder.path / name, folder.path / existing)

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
            while self._done_count < self._put_count:
                self._condition.wait()

    def close(self) -> None:
        """Write what waits, and end the threads."""
        self.drain()
        with self._condition:
            threads, self._threads = self._threads, []
            self._condition.notify_all()
        for thread in threads:
            thread.join()

    def abandon(self) -> None:
        """In a forked child, which has no such threads: forget everything."""
        self._condition = threading.Condition()
        self._tasks.clear()
        self._begun.clear()
        self._ready.clear()
        self._threads = []
        self._waiting_bytes = self._working = 0
        self._done_early.clear()
        self._done_count = self._put_count

    def _do(self, task: Callable[[], None]) -> bool:
        try:
            task()
        except Exception as error:
            self._failures.note("a tensor file", error)
            return False
        return True

    def _put(self, make: Callable[[], None], tensor_bytes: int, path: Path, needed: Path | None = None) -> None:
        size_bytes = tensor_bytes + _TASK_BYTES
        with self._condition:
            while self._waiting_bytes and self._waiting_bytes + size_bytes > self._limit_bytes:
                self._condition.wait()
            if not self._begin_work():
                return  # in the queue without a thread it would be waited for for ever
            self._tasks.append(_Task(self._put_count, make, size_bytes, path, needed))
            self._waiting_bytes += size_bytes
            self._put_count += 1
            self._condition.notify_all()

    def _begin_work(self) -> bool:
        """One more thread, if all are at work and there may be more."""
        is_one_free = len(self._threads) > self._working + len(self._tasks) + len(self._ready)
        if is_one_free or (self._threads and len(self._threads) >= self._count_writers()):
            return True
        # A daemon: a thread that is none would keep the interpreter from reaching the exit handler that ends it.
        thread = threading.Thread(target=self._work, name="tensorprobe-files", daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError as error:  # the process has as many as it may have
            self._threads.remove(thread)
            if not self._threads:
                self._failures.note("a tensor file", error)
        except BaseException:  # Ctrl-C
            if thread.ident is None:
                self._threads.remove(thread)
            raise
        return bool(self._threads)

    def _work(self) -> None:
        me = threading.current_thread()
        while (task := self._take(me)) is not None:
            self._do(task.make)
            self._finish(task)
            del task

    def _take(self, me: threading.Thread) -> _Task | None:
        """The next task that need not wait for another one; None where there will be no more."""
        with self._condition:
            while True:
                while not self._tasks and not self._ready:
                    if me not in self._threads:
                        return None
                    self._condition.wait()
                task = self._ready.popleft() if self._ready else self._begin(self._tasks.popleft())
                if self._is_first(task):
                    self._working += 1
                    return task

    def _begin(self, task: _Task) -> _Task:
        for path in task.paths:
            self._begun.setdefault(path, deque()).append(task)
        return task

    def _is_first(self, task: _Task) -> bool:
        return all(self._begun[path][0] is task for path in task.paths)

    def _finish(self, task: _Task) -> None:
        with self._condition:
            if task.path not in self._begun or not self._is_first(task):
                return  # everything was forgotten meanwhile
            self._waiting_bytes -= task.size_bytes
            self._working -= 1
            for path in task.paths:
                self._begun[path].popleft()
            following = [self._begun[path][0] for path in task.paths if self._begun[path]]
            for path in task.paths:
                if not self._begun[path]:
                    del self._begun[path]
            self._ready += [one for one in dict.fromkeys(following) if self._is_first(one)]
            self._done_early.add(task.number)
            while self._done_count in self._done_early:
                self._done_early.remove(self._done_count)
                self._done_count += 1
            self._condition.notify_all()

    def _write(self, folder: Folder, name: str, copy: Any, write_file: WriteFile | None = None) -> None:
        try:
            with folder.open_whole(name) as file:
                (write_file or self._write_file)(copy, file)
                size_bytes = file.tell()
            with self._condition:
                self.written_bytes += size_bytes
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
