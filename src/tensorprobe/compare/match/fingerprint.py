"""What a call looks like from outside: its operation, the shapes it saw, and the values that passed through it.

Everything is interned into small integers that mean the same on both sides, because these keys are compared millions
of times. Values are told apart by their largest and smallest element and their mean, rounded: a later step of training
differs in its last digits everywhere, and a run in bfloat16 has the rounded values of a run in float32 (the largest of
the rounded is the rounded largest). Checksums serve where there are no statistics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from tensorprobe.model.dtype import short_dtype
from tensorprobe.model.record import Number
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run
from tensorprobe.store.slot import TensorSlot
from tensorprobe.word.spelling import canonical_op
from tensorprobe.word.vocabulary import is_across_frameworks

Values = tuple[int, ...]
UNKNOWN_VALUE = 0

_BITS = (14, 14)
"""How many bits are kept of the largest and smallest element, and of the mean."""
_BITS_ACROSS_DTYPES = (8, 6)
_NO_MEAN = 1e-6
_MIXING = np.uint64(0x9E3779B97F4A7C15)


@dataclass(slots=True, eq=False)
class Fingerprint:
    """Numbers for one call; equal numbers mean equal things on both sides."""

    op: int
    shape: int
    """Operation and shapes."""
    values: Values
    """One number for each tensor; UNKNOWN_VALUE where the dump does not say or the value tells nothing."""
    leaves: Values
    """The same, of parameters and data only, which no call made: they stay what they are when calls change."""


class Fingerprinter:
    """Gives the same number to the same thing, in either run."""

    def __init__(self, reference: Run, candidate: Run) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._by_range = all(_has_range(run) for run in (reference, candidate))
        self._tells_whole = is_across_frameworks(reference.framework, candidate.framework)
        """One framework counts the batches of a norm, the other adds a bias: both are `add`, and no pair."""
        self._bits = _BITS if _main_dtype(reference) == _main_dtype(candidate) else _BITS_ACROSS_DTYPES

    def number(self, thing: Hashable) -> int:
        """1, 2, 3 … in the order in which things are first met."""
        return self._numbers.setdefault(thing, len(self._numbers) + 1)

    def take_all(self, calls: Sequence[Call], has_flow: bool) -> list[Fingerprint]:
        tensors = [call.tensors for call in calls]
        flat = [slot for slots in tensors for slot in slots]
        values = self._values(flat)
        leaves = iter(_leaves(flat, values, has_flow))
        rest = iter(values)
        found = []
        for call, slots in zip(calls, tensors, strict=True):
            op = self.number((canonical_op(call), self._tells_whole and _is_whole(slots)))
            count = len(slots)
            shape = self.number((op, sum([slot.is_input for slot in slots]), *[slot.shape for slot in slots]))
            found.append(Fingerprint(op, shape, tuple(islice(rest, count)), tuple(islice(leaves, count))))
        return found

    def _values(self, slots: Sequence[TensorSlot]) -> list[int]:
        """Numbers of 64 bits; different values have different ones but for a chance in billions of billions."""
        if self._by_range:
            codes = _range_codes(slots, self._bits)
            return [code ^ hash(slot.shape) if code else UNKNOWN_VALUE for slot, code in zip(slots, codes, strict=True)]
        return [UNKNOWN_VALUE if slot.checksum is None else self.number((slot.shape, slot.checksum)) for slot in slots]


def _range_codes(slots: Sequence[TensorSlot], bits: tuple[int, int]) -> list[int]:
    """Largest, smallest and mean; UNKNOWN_VALUE for a constant or for NaN, which tell no tensor from another."""
    if not slots:
        return []
    high = _floats([slot.max for slot in slots])
    low = _floats([slot.min for slot in slots])
    mean = np.nan_to_num(_floats([slot.mean for slot in slots]))
    with np.errstate(invalid="ignore"):
        mean[np.abs(mean) < _NO_MEAN * np.maximum(np.abs(high), np.abs(low))] = 0.0  # what rounding left of zero
    codes = np.zeros(len(slots), dtype=np.uint64)
    for numbers, kept in ((high, bits[0]), (low, bits[0]), (mean, bits[1])):
        codes = (codes ^ _round(numbers, kept)) * _MIXING
        codes ^= codes >> np.uint64(29)
    tells_nothing = (high == low) | np.isnan(high) | np.isnan(low)
    codes[tells_nothing] = UNKNOWN_VALUE
    return codes.tolist()  # type: ignore[no-any-return]


def _floats(numbers: list[Number]) -> npt.NDArray[np.float64]:
    """NaN for what is absent."""
    return np.array(numbers, dtype=np.float64)


def _leaves(slots: Sequence[TensorSlot], values: list[int], has_flow: bool) -> list[int]:
    """What no call made; in a dump without data flow, what is not the result of any call."""
    if has_flow:
        is_leaf = [slot.is_input and slot.source is None for slot in slots]
    else:
        made = {value for slot, value in zip(slots, values, strict=True) if not slot.is_input}
        is_leaf = [slot.is_input and value not in made for slot, value in zip(slots, values, strict=True)]
    return [value if leaf else UNKNOWN_VALUE for value, leaf in zip(values, is_leaf, strict=True)]


def _round(numbers: npt.NDArray[np.float64], bits: int) -> npt.NDArray[np.uint64]:
    """Integers that are equal for numbers that are equal to so many bits."""
    mantissa, exponent = np.frexp(np.nan_to_num(numbers))
    rounded = np.rint(np.ldexp(mantissa, bits)).astype(np.int64) * 8192 + exponent
    return np.asarray(rounded.astype(np.uint64))


def _is_whole(slots: Sequence[TensorSlot]) -> bool:
    """Is its result one of whole numbers?"""
    dtype = next((slot.dtype for slot in slots if not slot.is_input), None)
    return dtype is not None and short_dtype(dtype).startswith(("int", "uint", "bool"))


def _has_range(run: Run) -> bool:
    return any(slot.max is not None for slot in islice(_tensors(run.calls), 256))


def _main_dtype(run: Run) -> str | None:
    """The floating-point type that most of the first tensors have."""
    names = (slot.dtype for slot in islice(_tensors(run.calls), 1024))
    counts = Counter(short_dtype(name) for name in names if name is not None and "loat" in name)
    return counts.most_common(1)[0][0] if counts else None


def _tensors(calls: Iterable[Call]) -> Iterable[TensorSlot]:
    for call in calls:
        for slot in call.slots:
            if isinstance(slot, TensorSlot):
                yield slot
