"""Where NaN and Inf come from.

A call from which NaN comes out although none went in is where it arises: that is the line to look at. All later calls
carry it on. A mask of -Inf is sound, and common; the sign is therefore part of what is reported. Undefined memory
(`torch.empty`) may hold anything and does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tensorprobe.model.name import BACKWARD, FORWARD
from tensorprobe.model.undefined import is_undefined, is_undefined_result
from tensorprobe.run.call import Call
from tensorprobe.store.slot import TensorSlot

Quality = Literal["NaN", "Inf"]
Origin = Literal["arises", "enters", "carried"]
"""`arises`: it came out and did not go in. `enters`: the first call that was given it; nothing recorded made it.
`carried`: everything else."""

QUALITIES: tuple[Quality, ...] = ("NaN", "Inf")


@dataclass(frozen=True, slots=True)
class NonFiniteCall:
    """One call with NaN or Inf in it."""

    call: Call
    origins: Mapping[Quality, Origin]
    slots: tuple[TensorSlot, ...]
    """Those that hold NaN or Inf, results first."""


@dataclass(frozen=True, slots=True)
class NonFinite:
    """All such calls of one step of one process, in the order of execution."""

    calls: tuple[NonFiniteCall, ...] = ()

    def of(self, quality: Quality) -> list[NonFiniteCall]:
        """The calls that hold this one."""
        return [found for found in self.calls if quality in found.origins]

    def places(self, quality: Quality) -> list[NonFiniteCall]:
        """The calls where it arises or comes in; the first of them is the first in the order of execution."""
        return [found for found in self.of(quality) if found.origins[quality] != "carried"]


def find_non_finite(calls: Iterable[Call], parents: Mapping[str, str | None]) -> NonFinite:
    """Every call that holds NaN or Inf, and whether it arises there."""
    history = _History(parents)
    found = []
    for call in calls:
        origins: dict[Quality, Origin] = {}
        for quality in QUALITIES:
            origin = _find_origin(call, quality, history)
            if origin is not None:
                origins[quality] = origin
        for quality in origins:
            history.add(call, quality)
        if origins:
            slots = [slot for slot in history.defined_slots(call) if slot.has_nan or slot.has_inf]
            found.append(NonFiniteCall(call, origins, tuple(sorted(slots, key=lambda slot: slot.is_input))))
    return NonFinite(tuple(found))


def describe_counts(slot: TensorSlot) -> str:
    """`NaN 3 · -Inf 1,024`, with the sign of Inf where it is certain."""
    return " · ".join(describe_count(slot, quality) for quality in QUALITIES if holds(slot, quality))


def describe_count(slot: TensorSlot, quality: Quality) -> str:
    """`-Inf 1,024`; only `NaN` when the dump has no counts."""
    sign, count = "", slot.nan_count
    if quality == "Inf":
        has_plus, has_minus = slot.max == math.inf, slot.min == -math.inf
        sign = "+" if has_plus and not has_minus else "-" if has_minus and not has_plus else ""
        count = slot.inf_count
    return f"{sign}{quality}" if count is None else f"{sign}{quality} {count:,}"


def holds(slot: TensorSlot, quality: Quality) -> bool:
    """Is there NaN, or Inf, in this tensor?"""
    return slot.has_nan if quality == "NaN" else slot.has_inf


class _History:
    """What the calls before have held."""

    def __init__(self, parents: Mapping[str, str | None]) -> None:
        self._parents = parents
        self._records: set[tuple[str, Quality]] = set()
        self._qualities: set[Quality] = set()
        self._undefined: dict[str, set[tuple[object, ...]]] = {}
        """The numbers that calls returned which hand out memory as they found it."""

    def has(self, record: str, quality: Quality) -> bool:
        """Did this record hold it, or, for a module, something inside it?"""
        return (record, quality) in self._records

    def has_any(self, quality: Quality) -> bool:
        return quality in self._qualities

    def defined_slots(self, call: Call) -> list[TensorSlot]:
        """Its tensors, without those that are, or come from, undefined memory."""
        if is_undefined(call.note):
            self._undefined[call.name] = {_numbers(slot) for slot in call.tensors if not slot.is_input}
        return [slot for slot in call.tensors if not self._is_undefined(call, slot)]

    def _is_undefined(self, call: Call, slot: TensorSlot) -> bool:
        if slot.is_undefined:
            return True
        if slot.is_input:  # still what the call returned; in an older dump nothing else tells
            return slot.source in self._undefined and _numbers(slot) in self._undefined[slot.source]
        return call.name in self._undefined or (
            call.kind == "api" and is_undefined_result(call.prefix, call.op, call.direction, slot.slot)
        )

    def add(self, call: Call, quality: Quality) -> None:
        self._qualities.add(quality)
        record: str | None = call.name
        while record is not None and (record, quality) not in self._records:
            self._records.add((record, quality))
            record = self._parents.get(record)


def _numbers(slot: TensorSlot) -> tuple[object, ...]:
    """As texts, because NaN is not equal to itself."""
    return slot.element_count, slot.nan_count, slot.inf_count, repr(slot.max), repr(slot.min)


def _find_origin(call: Call, quality: Quality, history: _History) -> Origin | None:
    slots = history.defined_slots(call)
    holding = [slot for slot in slots if holds(slot, quality)]
    if not holding:
        return None
    if call.kind == "parameters_grad":
        return "carried" if history.has_any(quality) else "arises"
    if any(slot.is_input for slot in holding):
        return "carried" if history.has_any(quality) else "enters"
    is_inside = call.kind == "module" and history.has(call.name, quality)
    is_from_forward = call.phase == BACKWARD and history.has(call.in_direction(FORWARD), quality)
    return "carried" if is_inside or is_from_forward else "arises"
