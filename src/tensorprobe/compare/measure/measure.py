"""One pair of values, measured by what both sides have: tensors, else checksums, else statistics.

A tensor that was saved and cannot be read is measured by what its record says, which can still contradict.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tensorprobe.compare.measure.measurement import Measurement, other_shape
from tensorprobe.compare.measure.shape import has_same_layout
from tensorprobe.compare.measure.statistic_measure import (
    equal_measurement,
    has_same_checksum_kind,
    has_statistics,
    measure_checksums,
    measure_statistics,
    with_statistics_of,
)
from tensorprobe.compare.measure.tensor_measure import measure_arrays
from tensorprobe.errors import DumpError
from tensorprobe.store.slot import TensorSlot
from tensorprobe.store.tensor_file import open_tensor

__all__ = ["measure_arrays", "measure_checksums", "measure_recorded", "measure_slots", "measure_statistics"]


def measure_slots(
    reference: TensorSlot,
    candidate: TensorSlot,
    reference_path: Path | None,
    candidate_path: Path | None,
    rtol: float,
    atol: float,
) -> Measurement:
    """A failure is a measurement too, with a problem in the place of numbers."""
    if reference_path is None or candidate_path is None:
        return _measure_by_records(reference, candidate, reference_path, candidate_path)
    found = _measure_files(reference, candidate, reference_path, candidate_path, rtol, atol)
    if found.problem is None or found.is_other_shape:
        return found
    return _fall_back(_measure_by_records(reference, candidate, reference_path, candidate_path), found.problem)


def measure_recorded(reference: TensorSlot, candidate: TensorSlot, problem: str) -> Measurement:
    """By the records alone, because of this problem with the tensors; where they say nothing, the problem is left."""
    return _fall_back(_measure_records(reference, candidate), problem)


def _fall_back(found: Measurement, problem: str) -> Measurement:
    if found.is_other_shape:
        return found
    return Measurement("tensor", problem=problem) if found.is_equal is None else replace(found, fallback=problem)


def _measure_files(
    reference: TensorSlot, candidate: TensorSlot, reference_path: Path, candidate_path: Path, rtol: float, atol: float
) -> Measurement:
    try:
        first = _open(reference, reference_path)
        second = _open(candidate, candidate_path)
    except DumpError as error:
        return Measurement("tensor", problem=str(error))
    if first.shape != second.shape and has_same_layout(reference, candidate):
        second = second.reshape(first.shape)
    return measure_arrays(first, second, rtol, atol)


def _open(slot: TensorSlot, path: Path) -> np.ndarray[Any, Any]:
    """The tensor of a record, if it has the shape that the record says."""
    array = open_tensor(path, slot.dtype)
    if slot.shape is not None and array.shape != slot.shape and not _is_distributed(slot):
        raise DumpError(f"{path.name} has the shape {list(array.shape)}, its record {list(slot.shape)}")
    return array


def _is_distributed(slot: TensorSlot) -> bool:
    """The file of a DTensor holds the part of one rank, and its record the shape of the whole."""
    return slot.type.endswith("DTensor")


def _complete(slot: TensorSlot, path: Path | None) -> TensorSlot:
    """A record without statistics gets those of its file."""
    return slot if path is None or has_statistics(slot) else with_statistics_of(slot, _open(slot, path))


def _measure_by_records(
    reference: TensorSlot, candidate: TensorSlot, reference_path: Path | None, candidate_path: Path | None
) -> Measurement:
    found = _measure_records(reference, candidate)
    if found.problem is not None or found.is_equal is not None:
        return found
    try:
        return _measure_records(_complete(reference, reference_path), _complete(candidate, candidate_path))
    except DumpError as error:
        return Measurement("statistics", problem=str(error))


def _measure_records(reference: TensorSlot, candidate: TensorSlot) -> Measurement:
    if not has_same_layout(reference, candidate):
        return other_shape(_basis(reference, candidate), reference.shape, candidate.shape)
    if reference.element_count == 0:
        return equal_measurement("structure", 0, 0.0)
    if has_same_checksum_kind(reference, candidate):
        return measure_checksums(reference, candidate)
    if has_statistics(reference) and has_statistics(candidate):
        return measure_statistics(reference, candidate)
    return Measurement("structure", element_count=reference.element_count)


def _basis(reference: TensorSlot, candidate: TensorSlot) -> Any:
    if has_same_checksum_kind(reference, candidate):
        return "checksum"
    return "statistics" if has_statistics(reference) and has_statistics(candidate) else "structure"
