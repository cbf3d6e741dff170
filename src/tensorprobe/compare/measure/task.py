"""A pair to measure, as plain data, and the one function that measures it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tensorprobe.compare.measure.measure import measure_recorded, measure_slots
from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.errors import DumpError
from tensorprobe.store.reader import RankDump
from tensorprobe.store.slot import TensorSlot


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that makes each take several times as long, and there are many
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

    @property
    def has_file(self) -> bool:
        return self.reference_path is not None or self.candidate_path is not None

    @property
    def files(self) -> list[Path]:
        return [path for path in (self.reference_path, self.candidate_path) if path is not None]


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
        reference_path, candidate_path = _find(reference, reference_rank), _find(candidate, candidate_rank)
    except DumpError as error:
        return MeasureTask(reference, candidate, None, None, rtol, atol, str(error))
    return MeasureTask(reference, candidate, reference_path, candidate_path, rtol, atol)


def measure_task(task: MeasureTask) -> Measurement:
    """Measure one pair. Needs nothing but its task, so that any process, on any machine with the files, can do it."""
    if task.problem is not None:
        return measure_without_files(task, task.problem)
    try:
        return measure_slots(
            task.reference, task.candidate, task.reference_path, task.candidate_path, task.rtol, task.atol
        )
    except MemoryError:
        return measure_without_files(task, "too large for the memory of this machine")


def measure_without_files(task: MeasureTask, problem: str) -> Measurement:
    """By what the records say, because the tensors cannot be compared."""
    return measure_recorded(task.reference, task.candidate, problem)


def _find(slot: TensorSlot, rank: RankDump) -> Path | None:
    return None if slot.data_name is None else rank.tensor_path(slot.data_name)
