"""Runs the measurements of a comparison. A pair is a task with plain arguments, `measure_task` is all that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorprobe.compare.measure import measure_slots
from tensorprobe.compare.measurement import Measurement
from tensorprobe.errors import DumpError
from tensorprobe.store.reader import RankDump
from tensorprobe.store.slot import TensorSlot


@dataclass(frozen=True, slots=True)
class MeasureTask:
    """One pair of tensors: their records, and their files where there are any."""

    reference: TensorSlot
    candidate: TensorSlot
    reference_path: Path | None
    candidate_path: Path | None
    rtol: float
    atol: float
    problem: str | None = None
    """Why it cannot be measured: the name of a file leads out of the dump."""


def make_task(
    reference: TensorSlot,
    candidate: TensorSlot,
    reference_rank: RankDump,
    candidate_rank: RankDump,
    rtol: float,
    atol: float,
) -> MeasureTask:
    """The task of two slots of two dumps."""
    try:
        paths = [
            rank.tensor_path(slot.data_name) if slot.data_name is not None else None
            for slot, rank in ((reference, reference_rank), (candidate, candidate_rank))
        ]
    except DumpError as error:
        return MeasureTask(reference, candidate, None, None, rtol, atol, str(error))
    return MeasureTask(reference, candidate, paths[0], paths[1], rtol, atol)


def measure_task(task: MeasureTask) -> Measurement:
    """Measure one pair. Needs nothing but its task, so that any process, of any machine with the files, can do it."""
    if task.problem is not None:
        return Measurement("tensor", problem=task.problem)
    return measure_slots(task.reference, task.candidate, task.reference_path, task.candidate_path, task.rtol, task.atol)


def run_tasks(
    tasks: Sequence[MeasureTask],
    processes: int | None = None,
    progress: Callable[[], None] | None = None,
) -> Iterator[Measurement]:
    """The measurements in the order of the tasks, each as soon as it is there."""
    for task in tasks:
        yield measure_task(task)
        if progress is not None:
            progress()
