"""Which tensors two runs with statistics only start from in common, and in which form.

Nobody has kept them. A tensor of one run is one of the other if it has the same statistics; or several together, whose
counts, sums and squares add up to its own: three projections in one, a split batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tensorprobe.compare.judge.precision import coarser_dtype, unit_roundoff
from tensorprobe.compare.measure.statistic_measure import sketched_distance
from tensorprobe.compare.truth.computed_leaf import by_count, content_of, is_computed
from tensorprobe.errors import UsageError
from tensorprobe.model.dtype import short_dtype
from tensorprobe.model.name import FORWARD
from tensorprobe.run.step import Run
from tensorprobe.store.slot import TensorSlot
from tensorprobe.store.tensor_layout import numpy_dtype

_MOST_TRIALS = 5000
_RESOLUTION = 2e-6
"""Means and norms of the same numbers, summed in another order, may be so far apart."""
_RESOLUTION_OF_SUMS = 1e-5
_SCATTER = 4.0
"""How many times too large the distance by a sketch may be."""
_NARROW = ("float32", "float16", "bfloat16")
"""What numbers of a finer dtype are rounded to."""


@dataclass(frozen=True)
class JointLeaf:
    """A tensor, and those of the other run that follow each other along its first axis."""

    whole: TensorSlot
    parts: tuple[TensorSlot, ...]
    is_turned: bool = False
    """They do after its last two axes have changed places: a list of linear layers, stacked to be multiplied by."""


@dataclass(frozen=True)
class SharedLeaves:
    """What two runs start from, where each tensor of one is in the other, too, or computed there."""

    joints: Sequence[JointLeaf]
    """What one run starts from in parts."""
    computed: frozenset[object]
    """The contents of those that only the other run can compute."""


def share_leaves(reference: Run, candidate: Run) -> SharedLeaves | None:
    """None if there are others: of them nothing is known."""
    sides = [list(_iter_leaves(run)) for run in (reference, candidate)]
    lone = [_find_lone(*sides), _find_lone(*reversed(sides))]
    joints = _join_all(sides, lone)
    settled = {id(slot) for joint in joints for slot in (joint.whole, *joint.parts)}
    left = [[slot for slot in slots if not (id(slot) in settled or is_constant(slot))] for slots in lone]
    computed = [by_count(run) if slots else {} for run, slots in zip((candidate, reference), left, strict=True)]
    are_known = (is_computed(slot, made) for slots, made in zip(left, computed, strict=True) for slot in slots)
    return (
        SharedLeaves(joints, frozenset(content_of(slot) for slots in left for slot in slots))
        if all(are_known)
        else None
    )


def count_leaves(run: Run) -> int:
    """How many elements the tensors have that it starts from."""
    return sum(slot.element_count or 0 for slot in _iter_leaves(run))


def extremes(slot: TensorSlot) -> tuple[object, ...]:
    """What tensors with the same numbers have in common to the bit."""
    return slot.element_count, slot.max, slot.min


def list_extremes(slot: TensorSlot) -> list[tuple[object, ...]]:
    """These, and what they become where the numbers are rounded to a coarser dtype: rounding keeps the order."""
    own = short_dtype(slot.dtype)
    coarser = [name for name in _NARROW if name == own or coarser_dtype(own, name) == name]
    rounded = ((name, _round(slot, name)) for name in coarser if unit_roundoff(own) is not None)
    return [extremes(slot), *((name, slot.element_count, *both) for name, both in rounded if both is not None)]


def _round(slot: TensorSlot, dtype: str) -> tuple[float, float] | None:
    """None where numpy does not know the dtype, because ml_dtypes is not there."""
    try:
        coarse = numpy_dtype(dtype)
    except UsageError:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        largest, smallest = np.array([slot.max, slot.min], np.float64).astype(coarse).astype(np.float64).tolist()
    return largest, smallest


def is_constant(slot: TensorSlot) -> bool:
    """Then its statistics say all. Of complex numbers they tell how large they are."""
    return slot.max == slot.min and not short_dtype(slot.dtype).startswith("complex")


def has_same_numbers(slot: TensorSlot, other: TensorSlot) -> bool:
    """In whatever order of the axes, as far as statistics tell; rounded, where one has a coarser dtype."""
    is_one = is_one_dtype(slot, other)
    if slot.inf_count != other.inf_count and None not in (slot.inf_count, other.inf_count):
        return False  # of a mask that adds minus infinity nothing else tells how many it hides
    if lies_alike(slot, other) and is_one:
        return True
    has_sketches = slot.sketch is not None and other.sketch is not None
    if not is_one and has_sketches and axes_of(slot.shape) == axes_of(other.shape):
        return lies_alike(slot, other)  # norms and means tell little where they are rounded
    if slot.norm is None or other.norm is None or slot.mean is None or other.mean is None:
        return False
    size = max(abs(slot.norm), abs(other.norm))
    root = math.sqrt(slot.element_count or 1)
    resolution = _RESOLUTION + _rounding(slot, other)
    is_near = abs(slot.norm - other.norm) <= resolution * size
    is_near = is_near and abs(slot.mean - other.mean) * root <= resolution * size
    return is_near and sorted(axes_of(slot.shape)) == sorted(axes_of(other.shape))


def lies_alike(slot: TensorSlot, other: TensorSlot) -> bool:
    """Are its numbers in the same order, as far as sketches tell?"""
    distance = sketched_distance(slot, other)
    return not distance or distance <= _SCATTER * _rounding(slot, other) * abs(float(slot.norm or 0.0))


def is_one_dtype(slot: TensorSlot, other: TensorSlot) -> bool:
    """Whole numbers are the same in any."""
    dtypes = [short_dtype(one.dtype) for one in (slot, other)]
    return dtypes[0] == dtypes[1] or all(dtype.startswith(("int", "uint")) for dtype in dtypes)


def _rounding(slot: TensorSlot, other: TensorSlot) -> float:
    """What the coarser one of two dtypes does to numbers of the finer one."""
    return 0.0 if is_one_dtype(slot, other) else max(unit_roundoff(one.dtype) or 0.0 for one in (slot, other))


def axes_of(shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """Those that have a length."""
    return tuple(length for length in shape or () if length != 1)


def _iter_leaves(run: Run) -> Iterator[TensorSlot]:
    """The tensors that no call of the program made, each once, as they are used."""
    seen: set[object] = set()
    for call in run.calls:
        for slot in call.tensors if call.direction == FORWARD and call.caller is None else ():
            content = content_of(slot)
            if slot.is_input and slot.source is None and slot.max is not None and content not in seen:
                seen.add(content)
                yield slot


def _find_lone(own: list[TensorSlot], others: list[TensorSlot]) -> list[TensorSlot]:
    index: dict[object, list[TensorSlot]] = {}
    for slot in others:
        for key in list_extremes(slot):
            index.setdefault(key, []).append(slot)
    return [
        slot
        for slot in own
        if not any(has_same_numbers(slot, one) for key in list_extremes(slot) for one in index.get(key, ()))
    ]


def _join_all(sides: Sequence[list[TensorSlot]], lone: Sequence[list[TensorSlot]]) -> list[JointLeaf]:
    found = []
    for side in (0, 1):
        known = {id(slot) for slot in lone[1 - side]}
        others = [slot for slot in sides[1 - side] if id(slot) in known or is_constant(slot)]
        found += [joint for whole in lone[side] if (joint := join_leaves(whole, others)) is not None]
    return found


def join_leaves(whole: TensorSlot, others: Sequence[TensorSlot]) -> JointLeaf | None:
    """The tensors, of those in the order of their use, that the whole is made of; None where there are none."""
    forms = [whole] if len(whole.shape or ()) < 2 else [whole, turn(whole)]
    for form in forms:
        for dimensions in (0, 1):  # along the first axis, or stacked: not one and the other, which are too many to try
            wanted = len(form.shape or ()) - dimensions
            fitting = [slot for slot in others if len(slot.shape or ()) == wanted and _is_part(slot, form)]
            parts = _find_following(form, fitting) or _find_among(form, fitting)
            if parts:
                return JointLeaf(whole, parts, is_turned=form.shape != whole.shape)
    return None


def turn(slot: TensorSlot) -> TensorSlot:
    """With its last two axes in the other order, which changes nothing else that is asked for here."""
    *first, row, column = slot.shape or ()
    return replace(slot, shape=(*first, column, row))


def _find_following(whole: TensorSlot, fitting: Sequence[TensorSlot]) -> tuple[TensorSlot, ...]:
    """Where they are used one right after the other: three projections of one layer, all experts."""
    for first in range(len(fitting)):
        left, last = whole.element_count or 0, first
        while left > 0 and last < len(fitting):
            left, last = left - (fitting[last].element_count or 0), last + 1
        if not left and last > first + 1 and _adds_up(whole, fitting[first:last]):
            return tuple(fitting[first:last])
    return ()


def _find_among(whole: TensorSlot, fitting: Sequence[TensorSlot]) -> tuple[TensorSlot, ...]:
    """With others between them, or one of them twice."""
    waiting: list[tuple[int, int, tuple[TensorSlot, ...]]] = [(0, whole.element_count or 0, ())]
    for _ in range(_MOST_TRIALS):
        if not waiting:
            break
        place, left, parts = waiting.pop()
        if not left and len(parts) > 1 and _adds_up(whole, parts):
            return parts
        following = [
            (number, left - count, (*parts, fitting[number]))  # one mask may serve for both halves of a batch
            for number in range(place, len(fitting))
            if (count := fitting[number].element_count or 0) <= left
        ]
        waiting += reversed(following)  # the next ones first
    return ()


def _is_part(slot: TensorSlot, whole: TensorSlot) -> bool:
    """May it be one element of the first axis of the whole, or several?"""
    own, shape = slot.shape or (), whole.shape or ()
    if not shape or short_dtype(slot.dtype) != short_dtype(whole.dtype) or None in (slot.max, slot.min):
        return False
    is_within = slot.max <= whole.max and slot.min >= whole.min  # type: ignore[operator]
    return is_within and (own == shape[1:] or (len(own) == len(shape) and own[1:] == shape[1:]))


def _adds_up(whole: TensorSlot, parts: Sequence[TensorSlot]) -> bool:
    slots = (whole, *parts)
    counts = [slot.element_count or 0 for slot in slots]
    sums = [float(slot.mean or 0.0) * count for slot, count in zip(slots, counts, strict=True)]
    norms = [float(slot.norm or 0.0) for slot in slots]
    return (
        max(slot.max for slot in parts if slot.max is not None) == whole.max
        and min(slot.min for slot in parts if slot.min is not None) == whole.min
        and abs(sum(sums[1:]) - sums[0]) <= _RESOLUTION_OF_SUMS * norms[0] * math.sqrt(counts[0])
        and abs(math.hypot(*norms[1:]) - norms[0]) <= _RESOLUTION_OF_SUMS * norms[0]
    )
