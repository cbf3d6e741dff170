"""Several worker processes, each fed by a thread of this one; the answers come out in the order of the tasks.

When a worker dies, for want of memory for example, the pair that it was at is measured again by a fresh one, a few
times; then only its records are compared. It is not measured here, where it would end the comparison. When no worker
can be started, the work is done here.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.compare.measure.task import MeasureTask, measure_task, measure_without_files
from tensorprobe.compare.measure.worker import READY, Answer
from tensorprobe.store import stored_file

_BATCH_TASKS = 32
_BATCH_BYTES = 16 << 20
_START = "import sys; sys.path[:] = sys.argv[1:]; from tensorprobe.compare.measure.worker import main; main()"
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_MAX_TRIES = 3
_DIED = f"the process that measured it died (exit code {{code}}), {_MAX_TRIES} times: too little memory?"


def measure_in_processes(tasks: Sequence[MeasureTask], count: int) -> Generator[Measurement, None, None]:
    """The measurements in order. Closing the generator, or an exception such as Ctrl-C, ends all workers at once."""
    pool = _Pool(tasks)
    try:
        pool.start(count)
        for index in range(len(tasks)):
            yield pool.take(index)
    finally:
        pool.stop()


class _Pool:
    """Threads that feed the workers. The main thread holds no lock that they wait for: Ctrl-C may come between the
    taking of a lock and the block that gives it back, and would leave them waiting for ever."""

    def __init__(self, tasks: Sequence[MeasureTask]) -> None:
        self._tasks = tasks
        self._batches = deque(make_batches(tasks))
        self._arrived: queue.SimpleQueue[tuple[int, Answer]] = queue.SimpleQueue()
        self._answers: dict[int, Answer] = {}
        """What has arrived before its turn."""
        self._workers: list[_Worker] = []
        self._threads: list[threading.Thread] = []
        self._tries: Counter[int] = Counter()
        """How often a worker died at a task."""
        self._is_stopped = False

    def start(self, count: int) -> None:
        for number in range(count):
            thread = threading.Thread(target=self._feed, name=f"tensorprobe-compare-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._is_stopped = True
        for thread in self._threads:
            while thread.is_alive():  # it may be starting a worker at this moment
                for worker in tuple(self._workers):
                    worker.kill()
                thread.join(0.05)

    def take(self, index: int) -> Measurement:
        """Wait for one answer; an error that a worker met is raised here."""
        while index not in self._answers:
            is_fed = any(thread.is_alive() for thread in self._threads)  # asked first: what it left is then there
            try:
                other, answer = self._arrived.get(timeout=0.5 if is_fed else 0)
            except queue.Empty:
                if not is_fed:
                    return measure_task(self._tasks[index])
            else:
                self._answers[other] = answer
        answer = self._answers.pop(index)
        if isinstance(answer, Measurement):
            return answer
        error, trace = answer
        raise error from RuntimeError(f"in a worker process:\n{trace}")

    def _feed(self) -> None:
        worker: _Worker | None = None
        try:
            while not self._is_stopped and (batch := self._next_batch()) is not None:
                worker = worker or self._start_worker()
                if worker is None:
                    self._batches.appendleft(batch)
                    return
                if not self._run_batch(worker, batch):
                    self._lose(worker, batch)
                    worker = None
        finally:
            if worker is not None:
                self._end(worker)

    def _run_batch(self, worker: _Worker, batch: deque[int]) -> bool:
        """False when the worker died; the first that is left in the batch is where it did."""
        try:
            tasks = [self._tasks[index] for index in batch]
            bring_files(tasks)
            worker.send(tasks)
            while batch:
                self._arrived.put((batch[0], worker.receive()))
                batch.popleft()
        except (EOFError, OSError, pickle.UnpicklingError):
            return False
        return True

    def _lose(self, worker: _Worker, batch: deque[int]) -> None:
        code = self._end(worker)
        if self._is_stopped:
            return
        index = batch.popleft()
        if batch:
            self._batches.appendleft(batch)
        self._tries[index] += 1
        if self._tries[index] < _MAX_TRIES:
            self._batches.append(deque([index]))  # last, when the others no longer need the memory
        else:
            self._arrived.put((index, measure_without_files(self._tasks[index], _DIED.format(code=code))))

    def _start_worker(self) -> _Worker | None:
        if not sys.executable or hasattr(sys, "frozen"):
            return None  # a frozen program is no Python that could be started again
        try:
            worker = _Worker()
        except OSError:
            return None
        self._workers.append(worker)
        if worker.is_ready():
            return worker
        self._end(worker)
        return None

    def _end(self, worker: _Worker) -> int:
        code = worker.end()
        self._workers.remove(worker)
        return code

    def _next_batch(self) -> deque[int] | None:
        try:
            return self._batches.popleft()
        except IndexError:
            return None


class _Worker:
    """One process and the pipes to it."""

    def __init__(self) -> None:
        paths = [path or str(Path.cwd()) for path in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START, *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_ONE_THREAD},
            start_new_session=True,  # Ctrl-C is for this process, which ends its workers itself
        )

    def is_ready(self) -> bool:
        try:
            return bool(self.receive() == READY)
        except (EOFError, OSError, pickle.UnpicklingError):
            return False

    def send(self, tasks: list[MeasureTask]) -> None:
        assert self._process.stdin is not None
        pickle.dump(tasks, self._process.stdin)
        self._process.stdin.flush()

    def receive(self) -> Any:
        assert self._process.stdout is not None
        return pickle.load(self._process.stdout)

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> int:
        """Close its input and wait; one that was killed is only waited for."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:
                self._process.kill()  # it is gone, and what was meant for it with it
        return self._process.wait()


def make_batches(tasks: Sequence[MeasureTask]) -> list[deque[int]]:
    """Small pairs together, so that sending them costs little; large ones alone."""
    batches: list[deque[int]] = []
    size = 0
    for index, task in enumerate(tasks):
        task_size = sum(map(stored_file.size_bytes, task.files))
        if not batches or size + task_size > _BATCH_BYTES or len(batches[-1]) >= _BATCH_TASKS:
            batches.append(deque())
            size = 0
        batches[-1].append(index)
        size += task_size
    return batches


def bring_files(tasks: Iterable[MeasureTask]) -> None:
    """What of a batch lies in a store is copied here, many files at once."""
    stored_file.bring_all(path for task in tasks for path in task.files)
