"""How much error is explained: by rounding in the call itself, and by the errors of what went into it.

    tolerance = scale * (rounding + gain * largest error of the inputs)

Rounding noise grows with depth, so no fixed threshold is right at both ends of a model: each call is held against the
errors of its own inputs. `scale` is above 1 where terms cancel: the gradient of a bias that has no effect is a sum of
thousands of terms that should be zero, and what is left of it is noise, of the size of the terms and not of the sum.
All errors are relative to the size of the value, by norm and at the worst element (noise.py).

`docs/judgement.md` says why this holds and what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from tensorprobe.compare.judge.precision import unit_roundoff
from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.compare.measure.noise import GAIN, SILENCE, Noise, loudest
from tensorprobe.compare.measure.statistic_measure import sketched_distance
from tensorprobe.compare.option import CompareOptions
from tensorprobe.compare.result import ValuePair
from tensorprobe.model.name import BACKWARD
from tensorprobe.run.call import Call
from tensorprobe.store.slot import TensorSlot
from tensorprobe.word.layer_word import word_of
from tensorprobe.word.operation import is_a

ACCUMULATION = 32.0
"""Rounding inside a call, in units of float32's (or the dtype's own, where that is finer)."""
STORAGE = 4.0
"""Rounding of the result itself, in units of its dtype's."""
COMPOSITE = 8.0
"""How many times more rounding a call does that is many operations in one."""
PASSED_ON = 2.0
"""How much of the error that its inputs have, whatever explains it, any call may return."""
SKETCH_SCATTER = 4.0
"""How many times too large the distance by a sketch may be."""
_ACCUMULATOR_ROUNDOFF = 2.0**-24
_SUMMED_PER_UNIT = 256.0
"""Adding up so many terms doubles the error of one operation."""


@dataclass(frozen=True, slots=True)
class Explained:
    """What may be expected of one value."""

    tolerance: Noise
    scale: float

    def at_least(self, arrived: Noise) -> Explained:
        """An input whose terms cancelled is mostly noise: a call that only passes it on has made none of it.

        Where they cancel again, the noise is as large as it was, and what is left is smaller.
        """
        if arrived is SILENCE and self.tolerance.norm >= 0 and self.tolerance.peak >= 0:
            return self
        floor = Noise(*(PASSED_ON * self.scale * error if error else 0.0 for error in arrived))
        return Explained(loudest((self.tolerance, floor)), self.scale)


def error_of(measurement: Measurement) -> Noise | None:
    """The errors that are judged. None when only equality is known; infinite for a NaN or Inf of one side."""
    if measurement.has_one_sided_nonfinite:
        return Noise(math.inf, math.inf)
    if measurement.is_equal:
        return SILENCE
    norm, peak = measurement.relative_l2, measurement.relative_max
    if norm is None and peak is None:
        return None
    return Noise(norm or 0.0, peak or 0.0)


def is_within_fixed(value: ValuePair, options: CompareOptions) -> bool:
    """With tolerances that the user gave: every element within them, or every statistic, if there is no more. A NaN or
    Inf of one side is within none."""
    measurement = value.measurement
    if measurement is not None and measurement.allclose is not None:
        return measurement.allclose
    if measurement is not None and measurement.has_one_sided_nonfinite:
        return False
    rtol, atol = options.rtol or 0.0, options.atol or 0.0
    for name in ("max", "min", "mean", "norm"):
        reference, candidate = (_number(getattr(slot, name)) for slot in (value.reference, value.candidate))
        if reference is None or candidate is None:
            if reference is not candidate:
                return False
        elif reference != candidate and not _is_near(reference, candidate, rtol, atol):
            return False
    return _is_sketch_near(value, rtol, atol)


def _is_sketch_near(value: ValuePair, rtol: float, atol: float) -> bool:
    """Where every element is within the tolerance, the distance of the tensors is within that of all; an estimate of it
    is at most a few times too large."""
    reference, candidate = value.reference, value.candidate
    if not isinstance(reference, TensorSlot) or not isinstance(candidate, TensorSlot):
        return True
    allowed = atol * math.sqrt(reference.element_count or 1) + rtol * abs(_number(reference.norm) or 0.0)
    return sketched_distance(reference, candidate) <= SKETCH_SCATTER * allowed


def _is_near(reference: float, candidate: float, rtol: float, atol: float) -> bool:
    """An infinite reference would make any candidate near."""
    return math.isfinite(reference) and abs(reference - candidate) <= atol + rtol * abs(reference)


def explain(
    output: TensorSlot,
    candidate: TensorSlot,
    calls: tuple[Call, ...],
    inputs: Noise,
    natural_norm: float | None,
    is_composite: bool,
    dtype: str | None = None,
) -> Explained:
    """The tolerance of one result of a call (or of a group of calls) whose inputs have at most these errors; `dtype`:
    in which it was computed, if not in that of the output."""
    scale = cancellation((output, candidate), natural_norm)
    rounding = round_off(dtype or output.dtype, _summed_terms(calls, output))
    if is_composite or len(calls) > 1 or any(map(_is_many_in_one, calls)):
        rounding *= COMPOSITE
    return Explained(inputs.passed_on(rounding, scale), scale)


def _is_many_in_one(call: Call) -> bool:
    """An attention, a loss; a function that was compiled as a whole."""
    return call.prefix == "Jit" or is_a(word_of(call), "composite")


def exponent_noise(measurement: Measurement) -> Noise:
    """Of exp(x) where x has an absolute error; by GAIN less, which every call is allowed anyway.

    Half of the digits at most: more is no rounding, or it is in the fill of a mask, whose last digit may be 64.
    """
    error = min(2 * (measurement.max_abs_error or 0.0), math.sqrt(_ACCUMULATOR_ROUNDOFF)) / GAIN
    return Noise(error, error)


@lru_cache(maxsize=4096)
def round_off(dtype: str | None, terms: float = 1.0) -> float:
    """What one operation adds by itself; 0 for integers and booleans, which are exact."""
    unit = unit_roundoff(dtype)
    if unit is None:
        return 0.0
    accumulated = ACCUMULATION * min(unit, _ACCUMULATOR_ROUNDOFF) * (1 + math.sqrt(terms / _SUMMED_PER_UNIT))
    return accumulated + STORAGE * unit


def cancellation(both: tuple[TensorSlot, TensorSlot], natural_norm: float | None) -> float:
    """How many times larger the result would be, had nothing cancelled on either side; at least 1."""
    if natural_norm is None:
        return 1.0
    actual = largest_norm(both)
    if actual is None or not math.isfinite(natural_norm) or natural_norm <= actual:
        return 1.0
    return natural_norm / actual if actual > 0 else math.inf


def natural_norm(call: Call, output: TensorSlot, gradients: Iterable[TensorSlot] = ()) -> float | None:
    """The norm that a result has when its terms do not cancel; None where that is not known."""
    if call.direction == BACKWARD:
        return largest_norm(gradients)
    word = word_of(call)
    inputs = [slot for slot in call.tensors if slot.is_input]
    if is_a(word, "contraction"):
        return _contraction_norm(inputs, output)
    if is_a(word, "sum") and inputs:
        norm, terms = _number(inputs[0].norm), _ratio(inputs[0], output)
        if norm is None:
            return None
        return norm / terms if is_a(word, "mean") else norm
    if is_a(word, "addition"):
        sizes = [_root_mean_square(slot) for slot in inputs]
        known = [size for size in sizes if size is not None]
        return max(known) * math.sqrt(output.element_count or 1) if known else None
    return None


def largest_norm(slots: Iterable[TensorSlot]) -> float | None:
    norms = [norm for norm in (_number(slot.norm) for slot in slots) if norm is not None]
    return max(norms, default=None)


def _contraction_norm(inputs: list[TensorSlot], output: TensorSlot) -> float | None:
    """Of sums of products: the root mean squares of both factors, times the root of the number of terms."""
    factors = sorted((slot for slot in inputs if len(slot.shape or ()) >= 2), key=lambda slot: slot.slot)
    weights = [slot for slot in inputs if slot.slot == "parameters.weight"]
    if weights and factors:
        factors = [factors[0], weights[0]]
    if len(factors) < 2:
        return None
    first, second = _root_mean_square(factors[0]), _root_mean_square(factors[1])
    if first is None or second is None:
        return None
    return first * second * math.sqrt(_contracted_terms(factors, output) * (output.element_count or 1))


def _contracted_terms(factors: list[TensorSlot], output: TensorSlot) -> float:
    """K of a matrix product: both factors together have M*K*K*N elements, the result has M*N."""
    counts = [slot.element_count or 1 for slot in (factors[0], factors[1], output)]
    last = (factors[0].shape or (1,))[-1]
    return float(min(max(1, last), max(1.0, counts[0] * counts[1] / max(1, counts[2]))))


def _summed_terms(calls: tuple[Call, ...], output: TensorSlot) -> float:
    """How many terms go into one element of a result, as far as shapes tell."""
    counts = [slot.element_count or 1 for call in calls for slot in call.tensors if slot.is_input]
    return max(1.0, max(counts, default=1) / max(1, output.element_count or 1))


def _ratio(first: TensorSlot, second: TensorSlot) -> float:
    return max(1.0, (first.element_count or 1) / max(1, second.element_count or 1))


def _root_mean_square(slot: TensorSlot) -> float | None:
    norm, count = _number(slot.norm), slot.element_count
    return None if norm is None or not count else norm / math.sqrt(count)


def _number(value: object) -> float | None:
    if isinstance(value, (int, float)) and not math.isnan(value):
        return float(value)
    return None
