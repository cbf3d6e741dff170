"""One pair of values, measured by what both sides have: tensors, else checksums, else statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tensorprobe.compare.measurement import Measurement
from tensorprobe.compare.shape import has_same_layout
from tensorprobe.compare.statistic_measure import (
    equal_measurement,
    has_same_checksum_kind,
    has_statistics,
    measure_checksums,
    measure_statistics,
    with_statistics_of,
)
from tensorprobe.compare.tensor_measure import measure_arrays
from tensorprobe.errors import DumpError
from tensorprobe.store.slot import TensorSlot
from tensorprobe.store.tensor_file import NotDenseError, open_tensor

__all__ = ["measure_arrays", "measure_checksums", "measure_slots", "measure_statistics"]


def measure_slots(
    reference: TensorSlot,
    candidate: TensorSlot,
    reference_path: Path | None,
    candidate_path: Path | None,
    rtol: float,
    atol: float,
) -> Measurement:
    """A failure is a measurement too, with a problem in the place of numbers."""
    if reference_path is not None and candidate_path is not None:
        return _measure_files(reference, candidate, reference_path, candidate_path, rtol, atol)
    if not has_same_layout(reference, candidate):
        return Measurement(_basis(reference, candidate), problem=_shape_problem(reference.shape, candidate.shape))
    if reference.element_count == 0:
        return equal_measurement("structure", 0, 0.0)
    if has_same_checksum_kind(reference, candidate):
        return measure_checksums(reference, candidate)
    try:
        reference, candidate = _complete(reference, reference_path), _complete(candidate, candidate_path)
    except DumpError as error:
        return Measurement("statistics", problem=str(error))
    return _measure_records(reference, candidate)


def _measure_files(
    reference: TensorSlot, candidate: TensorSlot, reference_path: Path, candidate_path: Path, rtol: float, atol: float
) -> Measurement:
    try:
        first = _open(reference, reference_path)
        second = _open(candidate, candidate_path)
    except NotDenseError as error:
        # The records of sparse and quantized tensors have statistics.
        found = _measure_records(reference, candidate)
        return found if found.basis != "structure" else Measurement("tensor", problem=str(error))
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


def _measure_records(reference: TensorSlot, candidate: TensorSlot) -> Measurement:
    if not has_same_layout(reference, candidate):
        return Measurement("structure", problem=_shape_problem(reference.shape, candidate.shape))
    if has_statistics(reference) and has_statistics(candidate):
        return measure_statistics(reference, candidate)
    return Measurement("structure", element_count=reference.element_count)


def _basis(reference: TensorSlot, candidate: TensorSlot) -> Any:
    if has_same_checksum_kind(reference, candidate):
        return "checksum"
    return "statistics" if has_statistics(reference) and has_statistics(candidate) else "structure"


def _shape_problem(reference: tuple[int, ...] | None, candidate: tuple[int, ...] | None) -> str:
    return f"shape {_show(reference)} against {_show(candidate)}"


def _show(shape: tuple[int, ...] | None) -> str:
    return "unknown" if shape is None else str(list(shape))
