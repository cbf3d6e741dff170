"""What a call looks like from outside: its operation, the shapes it saw, and the values that passed through it.

Everything is interned into small integers that mean the same on both sides, because these keys are compared millions
of times. Values are told apart by their largest and smallest element, rounded to bfloat16: another order of reduction
hardly moves them, and a run in bfloat16 has the rounded ones of a run in float32. Checksums serve where there are no
statistics.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from itertools import islice
from typing import Any

from tensorprobe.compare.call import Call, Run
from tensorprobe.compare.spelling import canonical_op
from tensorprobe.store.slot import TensorSlot

Values = tuple[int, ...]
UNKNOWN_VALUE = 0


class Fingerprint:
    """Numbers for one call; equal numbers mean equal things on both sides."""

    __slots__ = ("op", "shape", "values", "weights")

    def __init__(self, op: int, shape: int, values: Values, weights: Values) -> None:
        self.op = op
        self.shape = shape
        """Operation and shapes."""
        self.values = values
        """One number for each tensor; UNKNOWN_VALUE where the dump does not say or the value tells nothing."""
        self.weights = weights
        """Those of the values that no recorded call produced: parameters, buffers, data."""


class Fingerprinter:
    """Gives the same number to the same thing, in either run."""

    def __init__(self, reference: Run, candidate: Run) -> None:
        self._numbers: dict[Any, int] = {}
        self._by_range = all(_has_range(run) for run in (reference, candidate))

    def number(self, thing: Any) -> int:
        """1, 2, 3 … in the order in which things are first met."""
        return self._numbers.setdefault(thing, len(self._numbers) + 1)

    def take(self, call: Call) -> Fingerprint:
        numbers = self._numbers
        shapes: list[Any] = []
        values: list[int] = []
        weights: list[int] = []
        for slot in call.slots:
            if not isinstance(slot, TensorSlot):
                continue
            shapes.append(slot.shape)
            shapes.append(slot.is_input)
            value = self._value(slot)
            if value is None:
                values.append(UNKNOWN_VALUE)
                continue
            number = numbers.setdefault(value, len(numbers) + 1)
            values.append(number)
            if slot.is_input and slot.source is None:
                weights.append(number)
        op = self.number(canonical_op(call))
        return Fingerprint(op, self.number((op, *shapes)), tuple(values), tuple(weights))

    def _value(self, slot: TensorSlot) -> Any:
        if not self._by_range:
            return None if slot.checksum is None else (slot.shape, slot.checksum)
        high, low = slot.max, slot.min
        if high is None or low is None or high == low or high != high or low != low:
            return None  # a constant, or all NaN: it tells no tensor from another
        if isinstance(high, float) and isinstance(low, float):
            return slot.shape, _round_to_bfloat16(high), _round_to_bfloat16(low)
        return slot.shape, high, low


def _has_range(run: Run) -> bool:
    return any(slot.max is not None for slot in islice(_tensors(run.calls), 256))


def _tensors(calls: Iterable[Call]) -> Iterable[TensorSlot]:
    for call in calls:
        for slot in call.slots:
            if isinstance(slot, TensorSlot):
                yield slot


def _round_to_bfloat16(number: float) -> int:
    """Its bits, to nearest even."""
    try:
        (bits,) = struct.unpack("<I", struct.pack("<f", number))
    except OverflowError:
        return 0x7F80 if math.copysign(1, number) > 0 else 0xFF80
    return int((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
