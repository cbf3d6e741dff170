"""Runs the measurements of a comparison: in this process, or in several where there is enough work for them.

Or on a cluster: tasks are plain data, and `measure_task` is all that has to run elsewhere.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Protocol

from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.compare.measure.task import MeasureTask, make_task, measure_task, measure_without_files
from tensorprobe.compare.measure.worker_pool import bring_files, make_batches, measure_in_processes
from tensorprobe.foreign_text import clean
from tensorprobe.store import stored_file

__all__ = ["Engine", "MeasureTask", "make_task", "measure_task", "open_engine", "run_tasks"]

LOCAL = "local"

_SECONDS_PER_TASK = 2e-4
_BYTES_PER_SECOND = 1e9
_SECONDS_PER_PROCESS = 0.3
"""Work that is worth the start of a process."""


class Engine(Protocol):
    """Where measurements are made, if not on this machine."""

    def measure(self, tasks: Sequence[MeasureTask]) -> Generator[Measurement, None, None]:
        """The measurements, in the order of the tasks."""


@contextlib.contextmanager
def open_engine(name: str) -> Iterator[Engine | None]:
    """`local`, which is None, or one of `ray` and `ray://…`."""
    if name == LOCAL:
        yield None
        return
    from tensorprobe.compare.measure.ray_engine import open_ray

    with open_ray(name) as engine:
        yield engine


def run_tasks(
    tasks: Sequence[MeasureTask], processes: int | None = None, engine: Engine | None = None
) -> Generator[Measurement, None, None]:
    """The measurements in the order of the tasks, each as soon as it is there.

    The same two files are measured once, under however many names they are linked. Stopping early stops the work.
    """
    plan = _Plan(tasks)
    with contextlib.closing(_measure(plan, processes, engine)) as measured:
        known: dict[int, Measurement] = {}
        for index, task in enumerate(tasks):
            if not task.has_file:
                yield measure_task(task)
                continue
            first = plan.first[index]
            if first == index:
                known[index] = next(measured)
            yield _reuse(known[first], tasks[first], task)


class _Plan:
    """Which tasks have files to read, and which of them are the same."""

    def __init__(self, tasks: Sequence[MeasureTask]) -> None:
        self.first: list[int] = []
        """Of each task, the first that is the same."""
        self.distinct: list[MeasureTask] = []
        """Those with files, each pair of files once."""
        self.seconds = 0.0
        """What they will cost, roughly."""
        seen: dict[Any, int] = {}
        for index, task in enumerate(tasks):
            if not task.has_file:
                self.first.append(index)
                continue
            first = seen.setdefault(_identity(task) or index, index)
            self.first.append(first)
            if first == index:
                self.distinct.append(task)
                size_bytes = sum(map(stored_file.size_bytes, task.files))
                self.seconds += _SECONDS_PER_TASK + size_bytes / _BYTES_PER_SECOND


def _measure(plan: _Plan, processes: int | None, engine: Engine | None) -> Generator[Measurement, None, None]:
    if engine is not None:
        yield from engine.measure(plan.distinct)
        return
    wanted = min(processes or _count_cores(), len(plan.distinct), int(plan.seconds / _SECONDS_PER_PROCESS))
    if wanted > 1:
        yield from measure_in_processes(plan.distinct, wanted)
    else:
        for batch in make_batches(plan.distinct):
            tasks = [plan.distinct[index] for index in batch]
            bring_files(tasks)
            for task in tasks:
                yield measure_task(task)


def _identity(task: MeasureTask) -> Any:
    """What makes two tasks the same: their files, by number, and what their records say of them."""
    files = [found for found in map(stored_file.identify_content, task.files) if found is not None]
    if len(files) < 2:
        return None
    records = [(slot.shape, slot.dtype, slot.type) for slot in (task.reference, task.candidate)]
    return (*files, *records, task.rtol, task.atol)


def _reuse(measurement: Measurement, first: MeasureTask, task: MeasureTask) -> Measurement:
    """What was measured of the same files. Where they could not be compared, each task has a name of its own for them,
    and records of its own."""
    problem = measurement.problem or measurement.fallback
    if problem is None or measurement.is_other_shape or first is task:
        return measurement
    for there, here in ((first.reference_path, task.reference_path), (first.candidate_path, task.candidate_path)):
        if there is not None and here is not None and problem.startswith(clean(there.name)):
            problem = clean(here.name) + problem.removeprefix(clean(there.name))
            break
    return measure_without_files(task, problem)


def _count_cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
