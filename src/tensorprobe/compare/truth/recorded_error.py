"""How far each recorded result is from its truth: the course of a run's own rounding, for who looks at it.

It decides nothing. The truths are in memory already; what is read for it again is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tensorprobe.compare.truth.judgement import Judgement
from tensorprobe.errors import DumpError
from tensorprobe.replay.result import Truth
from tensorprobe.replay.true_step import Array, TrueStep, TrueValue
from tensorprobe.run.step import Run
from tensorprobe.store.slot import TensorSlot
from tensorprobe.store.tensor_file import open_tensor

_MAX_ELEMENTS = 1 << 26
"""Of all that is read for one run."""


def find_recorded_errors(judgement: Judgement, runs: dict[str, Run]) -> dict[str, dict[str, float]]:
    """For each side: the largest relative error of the results of a call, by its name. Empty where the truth is not
    that of the run alone: it has no tensors, or took the parameters of the other run."""
    if judgement.truths:
        return {side: _take_largest(_iter_errors(truth)) for side, truth in judgement.truths.items()}
    if judgement.unequal or judgement.borrowers:
        return {}
    return {side: _take_largest(_measure(step, runs[side])) for side, step in judgement.steps.items()}


def _take_largest(found: Iterator[tuple[str, float]]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for record, error in found:
        if error == error and error >= largest.get(record, 0.0):
            largest[record] = error
    return largest


def _iter_errors(truth: Truth) -> Iterator[tuple[str, float]]:
    return ((row.record, row.accumulated.relative) for row in truth.rows if row.accumulated is not None)


def _measure(step: TrueStep, run: Run) -> Iterator[tuple[str, float]]:
    left = _MAX_ELEMENTS
    for name, slot, value in iter_results(step, run):
        left -= value.array.size
        if left < 0:
            return
        error = _find_error(run, slot, value.array)
        if error is not None:
            yield name, error


def iter_results(step: TrueStep, run: Run) -> Iterator[tuple[str, TensorSlot, TrueValue]]:
    """The floating results that were saved, and that were computed again."""
    for call in step.calls.values():
        record = run.by_name.get(call.name)
        for slot in record.tensors if record is not None else ():
            number = None if slot.is_input or slot.data_name is None else call.outputs.get(slot.slot)
            if number is not None:
                value = step.values[number]
                if value.is_floating and not value.is_pinned:
                    yield call.name, slot, value


def load_result(run: Run, slot: TensorSlot, true: Array) -> Array | None:
    """What was recorded of it, in the precision of its truth; None where that cannot be read, or is a part of it."""
    assert slot.data_name is not None
    try:
        recorded = open_tensor(run.rank.tensor_path(slot.data_name), slot.dtype)
    except DumpError:
        return None  # which the comparison says of this value
    if recorded.shape != true.shape:
        return None
    with np.errstate(all="ignore"):
        wide: Array = recorded.astype(np.complex128 if true.dtype.kind == "c" else np.float64)
    return wide


def _find_error(run: Run, slot: TensorSlot, true: Array) -> float | None:
    wide = load_result(run, slot, true)
    if wide is None:
        return None
    with np.errstate(all="ignore"):
        size = float(np.linalg.norm(true))
        distance = float(np.linalg.norm(wide - true))
    if not np.isfinite(distance) or not np.isfinite(size):
        return None
    return distance / size if size else 0.0 if not distance else float("inf")
