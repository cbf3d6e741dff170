"""Two folders of .npy files, compared file by file: rows, from which a table is made.

The numbers are those of `compare`; whether a pair is close is what numpy.allclose(reference, candidate) says, but for
integers: they are not rounded, so rtol is not for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from tensorprobe.compare.measure.executor import MeasureTask, run_tasks
from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.errors import DumpError, UsageError
from tensorprobe.foreign_text import clean
from tensorprobe.migrator.name_map import NamePair, Shape, dtype_in_name
from tensorprobe.model.npy_row import OTHER_SHAPE, NpyDirComparison, NpyRow
from tensorprobe.store.slot import TensorSlot, iter_slots
from tensorprobe.store.tensor_file import open_tensor

_BYTES_OF_TWO = "bfloat16"  # the only dtype of two bytes that numpy writes without its name
_BEYOND_NOISE = 0.01
"""Values below atol that are further apart, in their own size, are not close."""


@dataclass(frozen=True)
class NpyDirOptions:
    """What can be chosen; validated once."""

    rtol: float = 1e-4
    atol: float = 1e-4
    equal_nan: bool = False
    processes: int | None = None
    """None: as many as there are cores and work for them."""

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
                raise UsageError(f"{name} is {value!r}. Give a number that is not negative, such as 1e-4.")
        if not isinstance(self.equal_nan, bool):
            raise UsageError(f"equal_nan is {self.equal_nan!r}. Give True or False.")
        count = self.processes
        if count is not None and (isinstance(count, bool) or not isinstance(count, Integral) or count < 1):
            raise UsageError(f"num_processes is {count!r}. Give 1 or more, or leave it out.")


def compare_folders(
    reference: Path,
    candidate: Path,
    names: Sequence[NamePair],
    options: NpyDirOptions,
    progress: Callable[[], Any] | None = None,
) -> NpyDirComparison:
    """Every pair of names; `progress` is called for each."""
    pairs = [_FilePair(_look(reference, first), _look(candidate, second)) for first, second in names]
    tasks = [pair.make_task(options) for pair in pairs if pair.is_comparable]
    rows = []
    with closing(run_tasks(tasks, options.processes)) as measured:  # ends the workers, whatever happens here
        for pair in pairs:
            rows.append(pair.make_row(next(measured) if pair.is_comparable else None, options))
            if progress is not None:
                progress()
    return NpyDirComparison(str(reference), str(candidate), rows)


def read_shapes(folder: Path, names: Sequence[str]) -> dict[str, Shape | None]:
    """The shape of every file; None where it cannot be read."""
    return {name: _look(folder, name).shape for name in names}


@dataclass(frozen=True, slots=True)
class _File:
    """What the header of a file says."""

    name: str | None = None
    path: Path | None = None
    slot: TensorSlot | None = None
    shape: Shape | None = None
    is_integer: bool = False
    problem: str | None = None


def _look(folder: Path, name: str | None) -> _File:
    if name is None:
        return _File()
    path = folder / name
    try:
        if _leads_out(folder, name):
            return _File(name, problem="leads out of the folder")
        slot = _make_slot(dtype_in_name(name) or _BYTES_OF_TWO)
        array = open_tensor(path, slot.dtype)
    except DumpError as error:
        return _File(name, problem=str(error).removeprefix(clean(path.name)).strip())
    except (OSError, RuntimeError, ValueError) as error:  # a link to itself, a name that is too long
        return _File(name, problem=f"cannot be read ({getattr(error, 'strerror', None) or error})")
    return _File(name, path, slot, array.shape, array.dtype.kind in "biu")


def _leads_out(folder: Path, name: str) -> bool:
    """A link, or a name that a user gave, may lead anywhere."""
    path = folder / name
    is_plain = not path.is_symlink() and ".." not in path.parts[len(folder.parts) :] and not Path(name).is_absolute()
    return not is_plain and not path.resolve().is_relative_to(folder.resolve())


@lru_cache
def _make_slot(dtype: str) -> TensorSlot:
    """A record that says nothing but the dtype, which bfloat16 and its like need to be read."""
    (slot,) = iter_slots({"type": "numpy.ndarray", "dtype": dtype}, "")
    assert isinstance(slot, TensorSlot)
    return slot


@dataclass(frozen=True, slots=True)
class _FilePair:
    reference: _File
    candidate: _File

    @property
    def is_comparable(self) -> bool:
        return None not in (self.reference.path, self.candidate.path) and self.reference.shape == self.candidate.shape

    def make_task(self, options: NpyDirOptions) -> MeasureTask:
        """With the sides exchanged: numpy.allclose(a, b) holds the error against b, a measurement against its first."""
        first, second = self.candidate, self.reference
        assert first.slot is not None
        assert second.slot is not None
        rtol = 0.0 if first.is_integer and second.is_integer else float(options.rtol)
        return MeasureTask(first.slot, second.slot, first.path, second.path, rtol, float(options.atol))

    def make_row(self, measurement: Measurement | None, options: NpyDirOptions) -> NpyRow:
        numbers = _read_numbers(measurement, options)
        if measurement is not None:
            problem = measurement.problem
        else:
            problem = OTHER_SHAPE if self.reference.path is not None and self.candidate.path is not None else None
        return NpyRow(
            reference_name=self.reference.name,
            candidate_name=self.candidate.name,
            reference_shape=self.reference.shape,
            candidate_shape=self.candidate.shape,
            reference_problem=self.reference.problem,
            candidate_problem=self.candidate.problem,
            problem=problem,
            **numbers,
        )


def _read_numbers(measurement: Measurement | None, options: NpyDirOptions) -> dict[str, Any]:
    if measurement is None or measurement.problem is not None:
        return {"status": "not comparable"}
    count = max(measurement.element_count or 0, 1)
    refused_nan = 0 if options.equal_nan else measurement.nan_both or 0
    is_close = bool(measurement.allclose) and not refused_nan
    by_atol = is_close and _is_below_atol(measurement, options)
    return {
        "status": "close" if is_close and not by_atol else "different",
        "allclose": is_close,
        "allclose_share": (measurement.allclose_share or 0.0) - refused_nan / count,
        "cosine": math.nan if refused_nan or measurement.cosine is None else measurement.cosine,
        "mean_abs_error": math.inf if refused_nan else measurement.mean_abs_error,
        "max_abs_error": math.inf if refused_nan else measurement.max_abs_error,
        "relative_l2": math.inf if refused_nan else measurement.relative_l2,
        "passes_by_atol": by_atol,
    }


def _is_below_atol(measurement: Measurement, options: NpyDirOptions) -> bool:
    """Is all of it below atol, which then says nothing, and far apart in its own size?"""
    error, share = measurement.max_abs_error or 0.0, measurement.relative_max or 0.0
    if (measurement.relative_l2 or 0.0) <= options.rtol + _BEYOND_NOISE:
        return False
    return error <= share * float(options.atol)  # the share is the error over the largest magnitude


def iter_passing_by_atol(comparison: NpyDirComparison) -> Iterator[NpyRow]:
    """The pairs that numpy.allclose takes for equal although they have nothing in common."""
    return (row for row in comparison if row.passes_by_atol)
