"""The measurements of a comparison on a Ray cluster: one that runs, or one that is started here for the time.

A bounded number of batches is on its way at a time, and answers come out in the order of the tasks. A worker that is
lost costs the batch that it was at: Ray gives it to another one; a batch that is lost again and again is taken apart,
and the pair that does it is compared by its records. A node that does not see the files of a pair hands it back, and it
is measured here. Files in a store are copied by the node that needs them.
"""

from __future__ import annotations

import importlib
import importlib.util
import traceback
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.compare.measure.memory_bound import memory_bounded
from tensorprobe.compare.measure.task import MeasureTask, measure_task, measure_without_files
from tensorprobe.compare.measure.worker_pool import bring_files, make_batches
from tensorprobe.errors import UsageError
from tensorprobe.store import cache

WORKER_BYTES = 1 << 30
"""What a worker may take for its measurements, beyond what it has when it begins."""
_RETRIES = 3
_BATCHES_PER_CORE = 3
_LOST = "the worker that measured it was lost again and again: too little memory?"

Answer = Measurement | tuple[str, str] | None
"""A measurement; an error, and where it came from; or nothing, where the files are not to be seen."""


@dataclass(frozen=True)
class Parcel:
    """A task as it travels: the addresses of its files in a store, whose copies have another place on every machine."""

    task: MeasureTask
    urls: tuple[str | None, str | None]

    def unpack(self) -> MeasureTask:
        reference, candidate = (None if url is None else cache.place_of(url) for url in self.urls)
        return replace(
            self.task,
            reference_path=reference or self.task.reference_path,
            candidate_path=candidate or self.task.candidate_path,
        )


def pack_task(task: MeasureTask) -> Parcel:
    return Parcel(task, (_url_of(task.reference_path), _url_of(task.candidate_path)))


def _url_of(path: Path | None) -> str | None:
    return None if path is None else cache.url_of(path)


def measure_parcels(parcels: Sequence[Parcel]) -> list[Answer]:
    """What a worker does."""
    tasks = [parcel.unpack() for parcel in parcels]
    bring_files(tasks)
    with memory_bounded(WORKER_BYTES):
        return [_measure(task) for task in tasks]


def _measure(task: MeasureTask) -> Answer:
    if not all(path.exists() for path in task.files):
        return None
    try:
        return measure_task(task)
    except Exception as error:
        return f"{type(error).__name__}: {error}", traceback.format_exc()


class RayEngine:
    """A connection to a cluster."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._measure = ray.remote(num_cpus=1, max_retries=_RETRIES, memory=WORKER_BYTES)(measure_parcels)

    def measure(self, tasks: Sequence[MeasureTask]) -> Generator[Measurement, None, None]:
        """The measurements in order. Closing the generator, or an exception such as Ctrl-C, cancels what is left."""
        waiting = deque(list(batch) for batch in make_batches(tasks))
        running: dict[Any, list[int]] = {}
        answers: dict[int, Answer] = {}
        try:
            for index, task in enumerate(tasks):
                while index not in answers:
                    while waiting and len(running) < self._limit:
                        batch = waiting.popleft()
                        running[self._measure.remote([pack_task(tasks[one]) for one in batch])] = batch
                    done, _ = self._ray.wait(list(running), num_returns=1)
                    self._take(done[0], running.pop(done[0]), answers, waiting, tasks)
                yield _accept(answers.pop(index), task)
        finally:
            for reference in running:
                self._ray.cancel(reference, force=True)

    @property
    def _limit(self) -> int:
        return _BATCHES_PER_CORE * max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def _take(
        self,
        reference: Any,
        batch: list[int],
        answers: dict[int, Answer],
        waiting: deque[list[int]],
        tasks: Sequence[MeasureTask],
    ) -> None:
        try:
            answers.update(zip(batch, self._ray.get(reference), strict=True))
        except self._ray.exceptions.RayTaskError as error:  # what Ray could not even call
            if isinstance(error.as_instanceof_cause(), ModuleNotFoundError):
                raise UsageError(
                    f"the nodes of the Ray cluster cannot import what measures ({error.as_instanceof_cause()}): "
                    "install tensorprobe there, in the same version."
                ) from error
            raise
        except self._ray.exceptions.RayError:  # lost, however often it was given to another worker
            if len(batch) > 1:
                waiting.extendleft([index] for index in reversed(batch))
            else:
                answers[batch[0]] = measure_without_files(tasks[batch[0]], _LOST)


def _accept(answer: Answer, task: MeasureTask) -> Measurement:
    if answer is None:
        return measure_task(task)
    if isinstance(answer, Measurement):
        return answer
    text, trace = answer
    raise RuntimeError(f"{text}\nin a worker of the Ray cluster:\n{trace}")


@contextmanager
def open_ray(name: str) -> Iterator[RayEngine]:
    """`ray`: the cluster that this process belongs to, or that RAY_ADDRESS or this machine knows of, or else one that
    is started here; `ray://head:10001`: that one. What was connected here is disconnected at the end."""
    if importlib.util.find_spec("ray") is None:
        raise UsageError(f"--engine {name} needs ray: pip install ray")
    ray = importlib.import_module("ray")
    is_own = not ray.is_initialized()
    if is_own:
        try:
            ray.init(address=None if name == "ray" else name, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ImportError, RuntimeError) as error:
            raise UsageError(f"--engine {name}: no cluster answers there ({error}).") from error
    try:
        yield RayEngine(ray)
    finally:
        if is_own:
            ray.shutdown()
