"""What a call looks like from outside: its operation, the shapes it saw, and the values that passed through it.

Everything is interned into small integers that mean the same on both sides, because these keys are compared millions
of times. Values are told apart by a checksum, or by their largest and smallest element: these two survive another
order of reduction, and rounding keeps them (the largest of the rounded is the rounded largest).
"""

from __future__ import annotations

import math
import struct
from collections import Counter
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
        kinds = [_value_kinds(run) for run in (reference, candidate)]
        self._by_checksum = all(kind["checksum"] for kind in kinds) and kinds[0]["length"] == kinds[1]["length"]
        self._by_range = all(kind["range"] for kind in kinds)
        self._is_rounded = _main_dtype(reference) != _main_dtype(candidate)

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
        if self._by_checksum and slot.checksum is not None:
            return slot.checksum, slot.shape
        high, low = slot.max, slot.min
        if not self._by_range or high is None or low is None or high == low or high != high or low != low:
            return None  # a constant, or all NaN: it tells no tensor from another
        if self._is_rounded and isinstance(high, float) and isinstance(low, float):
            return slot.shape, _round_to_bfloat16(high), _round_to_bfloat16(low)
        return slot.shape, high, low


def _value_kinds(run: Run) -> dict[str, Any]:
    """What a run says about its values; from the first tensors that say anything."""
    kinds: dict[str, Any] = {"checksum": False, "range": False, "length": None}
    for slot in islice(_tensors(run.calls), 256):
        if slot.checksum is not None:
            kinds["checksum"], kinds["length"] = True, len(slot.checksum)
        kinds["range"] = kinds["range"] or slot.max is not None
    return kinds


def _main_dtype(run: Run) -> str | None:
    """The floating-point type that most tensors have: a run in bfloat16 has the rounded values of one in float32."""
    counts: Counter[str] = Counter()
    for slot in islice(_tensors(run.calls), 4096):
        if slot.dtype is not None and "loat" in slot.dtype:
            counts[slot.dtype.rpartition(".")[2].lower()] += 1
    return counts.most_common(1)[0][0] if counts else None


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
