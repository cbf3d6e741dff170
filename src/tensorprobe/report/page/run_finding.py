"""What is worth a look in a single run: NaN and Inf and what fed them, gradients, numbers near the end of their dtype,
digits that rounding took."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tensorprobe.compare.judge.precision import unit_roundoff
from tensorprobe.model.dtype import short_dtype
from tensorprobe.model.name import FORWARD
from tensorprobe.replay.result import Truth
from tensorprobe.report.nonfinite import QUALITIES, NonFiniteCall, Quality, describe_count, holds
from tensorprobe.report.page.detail import describe_array
from tensorprobe.report.page.run_table import RunTable
from tensorprobe.report.rank import RankReport
from tensorprobe.run.call import Call
from tensorprobe.run.saved_tensor import open_saved
from tensorprobe.store.slot import TensorSlot

_LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}
_NEAR = 0.25
"""Of the largest number: two more doublings, and it overflows."""
_MAX_LISTED = 200
_MAX_DETAILS = 40
_MAX_ELEMENTS = 1 << 26
"""Of all tensors that are drawn in advance: a page must not take longer than reading the run."""


def find_nonfinite(table: RunTable, reports: Sequence[RankReport]) -> dict[str, Any] | None:
    """The first call that produces NaN, else Inf, with the rows of what went into it; and all other such places. A mask
    of -Inf is sound: it comes last."""
    found = [one for place, report in enumerate(reports) for one in _iter_places(table, place, report)]
    found.sort(key=lambda one: one["is_usual"])  # stable: else NaN first, in the order of execution
    return {**found[0], "others": found[1:_MAX_LISTED]} if found else None


def _iter_places(table: RunTable, place: int, report: RankReport) -> Iterator[dict[str, Any]]:
    for quality in QUALITIES:
        for found in report.non_finite.places(quality):
            call = table.find(place, found.call.name)
            rows = table.rows_of(call)
            held = next(slot for slot in found.slots if holds(slot, quality))
            yield {
                "headline": _describe_place(found, held, quality, report.name),
                "quality": quality,
                "origin": found.origins[quality],
                "call": call,
                "row": next(row for row in rows if table.values[row][1] is held),
                "fed_by": [row for row in rows if table.values[row][1].is_input],
                "is_usual": describe_count(held, quality).startswith("-"),
            }


def _describe_place(found: NonFiniteCall, slot: TensorSlot, quality: Quality, place: str) -> str:
    origin = "comes from outside into" if found.origins[quality] == "enters" else "first arises in"
    mask = " Only -Inf: usual in a mask." if describe_count(slot, quality).startswith("-") else ""
    return f"{quality} {origin} {found.call.name} ({place}): {_count_elements(slot, quality)}.{mask}"


def _count_elements(slot: TensorSlot, quality: Quality) -> str:
    """`22 of the 64 elements of output.0 are NaN`; `output.0 has NaN` where the dump has no counts."""
    kind, _, count = describe_count(slot, quality).partition(" ")
    if not count or not slot.element_count:
        return f"{slot.slot} has {kind}"
    if slot.element_count == 1:
        return f"{slot.slot} is {kind}"
    verb = "is" if count == "1" else "are"
    share = "all" if count == f"{slot.element_count:,}" else f"{count} of the"
    return f"{share} {slot.element_count:,} elements of {slot.slot} {verb} {kind}"


def find_gradients(table: RunTable, reports: Sequence[RankReport]) -> list[dict[str, Any]]:
    """The norm of the gradient of every parameter; where no module's were recorded, as each call gave it back."""
    found = []
    for place, report in enumerate(reports):
        for gradient in report.gradients:
            call = table.find(place, gradient.record)
            found.append({"parameter": gradient.parameter, "norm": gradient.norm, "call": call, "place": place})
        if not report.gradients:
            found += _iter_returned(table, place)
    return found


def _iter_returned(table: RunTable, place: int) -> Iterator[dict[str, Any]]:
    """Level L1 has no records of modules: a backward call gives the gradient of each argument of its forward."""
    for number, (at, run, call) in enumerate(table.entries):
        forward = run.by_name.get(call.in_direction(FORWARD)) if at == place and call.direction != FORWARD else None
        parameters = _name_parameters(forward) if forward is not None and call.kind == "api" else {}
        for slot in call.tensors:
            parameter = parameters.get(slot.slot.replace("output", "input", 1))
            if parameter is not None and not slot.is_input and slot.norm is not None:
                yield {"parameter": parameter, "norm": slot.norm, "call": number, "place": place}


def _name_parameters(forward: Call) -> dict[str, str]:
    return {slot.slot: slot.parameter for slot in forward.tensors if slot.parameter is not None}


def find_overflow(table: RunTable) -> list[dict[str, Any]]:
    """Results of half precision that are close to its largest number, the closest first."""
    found: list[dict[str, Any]] = []
    for row, (_, slot) in enumerate(table.values):
        dtype = short_dtype(slot.dtype)
        limit = _LARGEST.get(dtype)
        sizes = [abs(float(number)) for number in (slot.max, slot.min) if number is not None]
        finite = [size for size in sizes if math.isfinite(size)]
        if limit is None or slot.is_input or slot.is_undefined or not finite or max(finite) < _NEAR * limit:
            continue
        found.append({"row": row, "max_abs": max(finite), "dtype": dtype, "share": max(finite) / limit})
    return sorted(found, key=lambda one: -one["share"])[:_MAX_LISTED]


def find_lost_digits(table: RunTable, truths: Sequence[Truth]) -> list[dict[str, Any]]:
    """For each call how many decimal digits its worst result has lost beyond one rounding of its dtype."""
    lost: dict[int, float] = {}
    for truth in truths:
        if truth.name not in table.places:
            continue
        place = table.places.index(truth.name)
        for row in truth.rows:
            number = table.find(place, row.record)
            rounding = unit_roundoff(row.dtype)
            if number < 0 or row.accumulated is None or rounding is None:
                continue
            relative = row.accumulated.relative
            digits = math.log10(relative / rounding) if relative > rounding else 0.0
            lost[number] = max(digits, lost.get(number, 0.0))
    return [{"call": number, "digits": digits} for number, digits in sorted(lost.items())]


def draw_rows(table: RunTable, rows: Iterable[int]) -> dict[str, Any]:
    """The pictures of the first so many of these rows that have tensors, by the number of the row."""
    drawn: dict[str, Any] = {}
    left = _MAX_ELEMENTS
    for row in dict.fromkeys(rows):
        number, slot = table.values[row]
        values = open_saved(table.entries[number][1].rank, slot)
        if values is not None and values.size <= left:
            left -= values.size
            drawn[str(row)] = describe_array(values)
        if len(drawn) == _MAX_DETAILS:
            break
    return drawn
