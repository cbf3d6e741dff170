"""Is an error explained by rounding? In units of rounding, element by element.

What rounding does to a result is first taken from the result itself: a unit of its element, or of its usual element.
Only where that does not explain the error the call is made again on rounded inputs, which tells what it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch

from tensorprobe.replay.error import place_index
from tensorprobe.replay.result import Judgement

_EXPLAINED_UNITS = 16.0
"""So many units of rounding are a kernel that computes in its own order."""
_FACTOR_UNITS, _FACTOR_DEVIATIONS, _FACTOR_SENSITIVITY, _LEAST_COUNT = 1.2, 4.0, 1.0, 16
"""A factor is one if it is so many units from 1, and so many standard deviations of what rounding does to single
elements, and so many times what rounded inputs do; where there are elements enough to tell."""
_LEAST_FACTOR = 1e-4
"""A kernel that approximates a function may be off in one direction, by a little."""


def allow_units(result_count: int, input_counts: Sequence[int]) -> float:
    """How many units of rounding are explained, by the number of elements that go in and come out: a sum of n terms of
    either sign, added one after the other, errs by the square root of n units of its size."""
    counts = sorted(input_counts, reverse=True)[:2]
    if not counts or not result_count:
        return _EXPLAINED_UNITS
    length = max(counts[0] / result_count, math.sqrt(math.prod(counts) / result_count) if len(counts) > 1 else 0.0)
    return _EXPLAINED_UNITS + math.sqrt(length)


@dataclass(frozen=True, slots=True)
class Unit:
    """What one rounding does."""

    eps: float
    """To a number, relative to it."""
    floor: float
    """At least: the step between the smallest numbers."""

    @staticmethod
    def of(*dtypes: torch.dtype, count: int = 1) -> Unit:
        """In the coarsest of some dtypes, `count` times."""
        limits = [torch.finfo(dtype) for dtype in dtypes]
        return Unit(
            count * max(one.eps for one in limits), count * max(float(one.tiny) * float(one.eps) for one in limits)
        )


def judge(
    recorded: torch.Tensor,
    truth: torch.Tensor,
    unit: Unit,
    allowed_units: float = _EXPLAINED_UNITS,
    sensitivities: Iterable[float] = (),
) -> Judgement:
    """`recorded` against `truth` in float64. Elements that are infinite in either are left out: they have a sentence of
    their own. `sensitivities` tell how far rounding moves the result, each by a way of its own: they are asked one
    after the other, as long as the error is not explained."""
    wide = recorded.detach().to(truth.dtype)
    truth = truth.detach()
    error = (wide - truth).abs()
    largest = float(error.max()) if error.numel() else 0.0
    if not math.isfinite(largest):
        is_number = torch.isfinite(wide) & torch.isfinite(truth)
        wide, truth = torch.where(is_number, wide, 0), torch.where(is_number, truth, 0)
        error = (wide - truth).abs()
        largest = float(error.max())
    size = truth.abs()
    if not largest:
        return Judgement(0.0, (), 0.0, 0.0)
    usual = float(size.square().mean().sqrt())
    units = error / (unit.eps * (size + usual) + unit.floor)
    # the largest of n elements lies so many standard deviations out
    tail, moved = max(1.0, math.sqrt(2 * math.log(error.numel()))), 0.0
    waiting = iter(sensitivities)
    while float(units.max()) > allowed_units and (more := next(waiting, None)) is not None:
        moved = math.hypot(moved, more)
        units = error / (unit.eps * size + tail * moved + unit.floor)
    place = int(units.argmax())
    return Judgement(
        float(units.reshape(-1)[place]),
        place_index(place, truth),
        _number(wide, place),
        _number(truth, place),
        allowed_units,
        _find_factor(
            wide, truth, replace(unit, eps=unit.eps * allowed_units / _EXPLAINED_UNITS), chain([moved], waiting)
        ),
    )


def _find_factor(
    recorded: torch.Tensor, truth: torch.Tensor, unit: Unit, sensitivities: Iterable[float]
) -> float | None:
    """By what all elements are multiplied, if it is more than rounding: the errors of many elements cancel, that of a
    factor does not. So it is seen where it is less than the rounding of each element, in bfloat16."""
    is_normal = truth.abs() * unit.eps > unit.floor  # smaller ones may be rounded to zero, all of them
    recorded, truth = torch.where(is_normal, recorded, 0), torch.where(is_normal, truth, 0)
    square = float(truth.abs().square().sum())
    if truth.is_complex() or not 0 < square < math.inf or truth.numel() < _LEAST_COUNT:
        return None
    factor = float((recorded * truth).sum()) / square
    spread = math.sqrt(float(truth.square().square().sum())) / square  # 1 where one element is all there is
    excess = abs(factor - 1)
    if not excess > max(_LEAST_FACTOR, unit.eps * (_FACTOR_UNITS + _FACTOR_DEVIATIONS * spread)):
        return None
    usual = math.sqrt(square / truth.numel())
    moved = 0.0
    for more in sensitivities:
        moved = math.hypot(moved, more)
        if excess * usual < _FACTOR_SENSITIVITY * moved:
            return None
    return factor


def _number(tensor: torch.Tensor, place: int) -> float:
    found = tensor.reshape(-1)[place].item()
    return abs(found) if isinstance(found, complex) else float(found)
