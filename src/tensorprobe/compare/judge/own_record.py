"""Which records are those of the program itself, and what the statistics of one tell."""

from __future__ import annotations

import math
from typing import Any

from tensorprobe.compare.judge.precision import unit_roundoff
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run
from tensorprobe.store.slot import TensorSlot


def is_own_api(call: Call, direction: str) -> bool:
    """Is it a call of the program itself, in this direction?"""
    return call.kind == "api" and call.caller is None and call.direction == direction


def list_own(run: Run, direction: str) -> list[Call]:
    return [call for call in run.calls if is_own_api(call, direction)]


def is_measured(slot: TensorSlot) -> bool:
    """Is it a tensor of real numbers, all of them finite?"""
    numbers = slot.max, slot.min, slot.norm
    is_real = unit_roundoff(slot.dtype) is not None
    return is_real and all(isinstance(one, float) and math.isfinite(one) for one in numbers)


def read_number(value: Any) -> float:
    return float(value or 0.0)
