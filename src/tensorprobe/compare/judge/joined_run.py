"""A step that takes its batch in parts, each with a backward of its own, as if it took all of it at once: what a call
computes of the whole batch is what it computes of all parts, of which statistics add up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, takewhile

from tensorprobe.compare.judge.own_record import list_own
from tensorprobe.model.name import FORWARD
from tensorprobe.run.backward_pass import read_passes
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run
from tensorprobe.store.slot import TensorSlot


def join_parts(run: Run) -> Run:
    """The run with the calls of its first part in the place of those of all; as it is, where it has no parts."""
    ends = [one.position for one in read_passes(run.rank.run) if one.accumulates]
    if len(ends) < 2:
        return run
    own = list_own(run, FORWARD)
    parts = [[call for call in own if start <= call.position < end] for start, end in pairwise((0, *ends))]
    rows = list(takewhile(_do_the_same, zip(*(reversed(part) for part in parts), strict=False)))
    joined = {row[0].name: _join(row) for row in rows}
    others = {call.name for row in rows for call in row[1:]}
    return Run(run.rank, [joined.get(call.name, call) for call in run.calls if call.name not in others])


def _do_the_same(calls: Sequence[Call]) -> bool:
    return len({(call.prefix, call.op, tuple(slot.slot for slot in call.tensors)) for call in calls}) == 1


def _join(calls: Sequence[Call]) -> Call:
    rows = zip(*(call.tensors for call in calls), strict=True)
    joined = {row[0].slot: _add_up(row) for row in rows}
    return replace(calls[0], slots=tuple(joined.get(slot.slot, slot) for slot in calls[0].slots))


def _add_up(slots: Sequence[TensorSlot]) -> TensorSlot:
    """Of several tensors as of one; of one that all parts take, as a weight, as it is."""
    first = slots[0]
    counts = [slot.element_count or 0 for slot in slots]
    numbers = [number for slot in slots for number in (slot.max, slot.min, slot.mean, slot.norm)]
    if None in numbers or not all(counts) or len({_tell(slot) for slot in slots}) == 1:
        return first
    total = sum(counts)
    mean = sum(float(slot.mean or 0.0) * count for slot, count in zip(slots, counts, strict=True)) / total
    return replace(
        first,
        shape=(total,),
        max=max(float(slot.max or 0.0) for slot in slots),
        min=min(float(slot.min or 0.0) for slot in slots),
        mean=mean,
        norm=math.hypot(*(float(slot.norm or 0.0) for slot in slots)),
        inf_count=sum(slot.inf_count or 0 for slot in slots),
        nan_count=sum(slot.nan_count or 0 for slot in slots),
        sketch=None,
    )


def _tell(slot: TensorSlot) -> object:
    return slot.max, slot.min, slot.mean, slot.norm, slot.sketch
