"""Tables and masks that one run starts from and the other computes: cosines by position, which tokens are seen.

Of runs with statistics only nothing is known of the numbers they start from; but what the other run computes of
nothing can be computed again. It is the same if it has the recorded statistics.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace

import numpy as np

from tensorprobe.compare.measure.statistic_measure import has_near_statistics, sketched_distance, with_statistics_of
from tensorprobe.compare.truth.value_index import Counterparts, other_side
from tensorprobe.model.dtype import short_dtype
from tensorprobe.model.name import FORWARD
from tensorprobe.replay.true_step import Array, LeafKey, TrueStep, TrueValue
from tensorprobe.run.step import Run
from tensorprobe.store.slot import TensorSlot

_DISTANCE = 6e-6
"""So much of their size may cosines of two frameworks be apart."""
_MOST_ELEMENTS = 1 << 26
"""Of all that is summed up to be held against what was recorded."""


def iter_results(run: Run) -> Iterator[TensorSlot]:
    """What the calls of the program computed."""
    for call in run.calls:
        if call.direction == FORWARD and call.caller is None:
            yield from (slot for slot in call.tensors if not slot.is_input and slot.max is not None)


def is_computed(leaf: TensorSlot, results: Mapping[int, list[TensorSlot]]) -> bool:
    """May it be one of these results, by their counts of elements? A mask may be what the other run leaves out."""
    found = results.get(leaf.element_count or 0, ())
    return any(
        has_near_statistics(one, leaf) or (_is_mask(leaf) and has_near_statistics(_invert(one), leaf)) for one in found
    )


def content_of(slot: TensorSlot) -> object:
    """Equal for tensors that are the same, as far as their record tells."""
    return slot.shape, slot.dtype, slot.max, slot.min, slot.mean, slot.norm, slot.sketch


def by_count(run: Run) -> dict[int, list[TensorSlot]]:
    found: dict[int, list[TensorSlot]] = {}
    for slot in iter_results(run):
        found.setdefault(slot.element_count or 0, []).append(slot)
    return found


@dataclass(frozen=True)
class ComputedLeaves:
    """What one run starts from and the other computes."""

    contents: dict[str, dict[LeafKey, Array]]
    """For each side, its leaves with what the other run computes of them."""
    known: Set[object]
    """Which they are, by what was recorded of them."""


def find_computed(counterparts: Counterparts, runs: Mapping[str, Run]) -> ComputedLeaves:
    """Those where what the other run computes has their recorded statistics."""
    found: dict[str, dict[LeafKey, Array]] = {"reference": {}, "candidate": {}}
    known = set[object]()
    for side, step in counterparts.steps.items():
        lone = [leaf for leaf in step.leaves if not (leaf.is_trained or leaf.is_gradient or leaf.key is None)]
        wanted = {leaf: _find_record(leaf, step, runs[side]) for leaf in lone if not counterparts.exists(side, leaf)}
        made = _list_computed(counterparts.steps[other_side(side)]) if any(wanted.values()) else {}
        left = _MOST_ELEMENTS
        for leaf, slot in wanted.items():
            for content in made.get(leaf.array.size, ()) if slot is not None else ():
                assert slot is not None and leaf.key is not None
                if not _may_be(content, slot) or left < content.size:
                    continue
                left -= content.size
                fitting = _fit(content, slot)
                if fitting is not None:
                    found[side][leaf.key] = fitting.reshape(leaf.array.shape)
                    known.add(content_of(slot))
                    break
    return ComputedLeaves(found, known)


def _list_computed(step: TrueStep) -> dict[int, list[Array]]:
    """What the calls of the program computed, each content once, by its number of elements."""
    found: dict[int, dict[bytes, Array]] = {}
    for value in step.values:
        maker = step.maker(value)
        if maker is not None and maker.caller is None and not value.is_pinned and value.array.size:
            content = np.ascontiguousarray(value.array)
            digest = hashlib.blake2b(content.tobytes(), digest_size=16).digest()
            found.setdefault(content.size, {}).setdefault(digest, content)
    return {size: list(contents.values()) for size, contents in found.items()}


def _may_be(content: Array, wanted: TensorSlot) -> bool:
    """By the largest and the smallest number, before more is asked."""
    if content.dtype.kind == "c":
        return True
    with np.errstate(invalid="ignore"):
        ends = float(content.max()), float(content.min())
    told = float(wanted.max or 0.0), float(wanted.min or 0.0)
    room = 1e-5 * max(map(abs, (*ends, *told)))
    return content.dtype.kind == "b" or all(abs(one - other) <= room for one, other in zip(ends, told, strict=True))


def _find_record(leaf: TrueValue, step: TrueStep, run: Run) -> TensorSlot | None:
    """What was recorded of it, where it was taken first."""
    for call in step.users.get(leaf.number, ()):
        record = run.by_name.get(call.name)
        places = [place for place, number in call.inputs.items() if number == leaf.number]
        slots = (slot for slot in record.tensors if slot.is_input and slot.slot in places) if record else iter(())
        found = next(slots, None)
        if found is not None:
            return found if found.sketch is not None and found.max != found.min else None
    return None


def _fit(content: Array, wanted: TensorSlot) -> Array | None:
    """The content, or what is left of a mask, if it has these statistics and this order."""
    contents = [content, ~content] if content.dtype.kind == "b" else [content]
    return next((one for one in contents if _has_statistics(one, wanted)), None)


def _has_statistics(content: Array, wanted: TensorSlot) -> bool:
    """Where infinite numbers lie is in no record: with them nothing is known."""
    told = replace(with_statistics_of(wanted, content), dtype=f"{content.dtype}")
    if not has_near_statistics(told, wanted) or told.inf_count or told.nan_count:
        return False
    if content.dtype.kind in "biu":
        return told.sketch == wanted.sketch
    return told.sketch is not None and sketched_distance(told, wanted) <= _DISTANCE * abs(float(wanted.norm or 0.0))


def _is_mask(slot: TensorSlot) -> bool:
    return short_dtype(slot.dtype) == "bool"


def _invert(slot: TensorSlot) -> TensorSlot:
    """The statistics of what a mask leaves out."""
    if not _is_mask(slot) or slot.mean is None:
        return slot
    count, mean = slot.element_count or 0, max(1.0 - slot.mean, 0.0)
    return replace(
        slot, max=1 - int(slot.min or 0), min=1 - int(slot.max or 0), mean=mean, norm=math.sqrt(mean * count)
    )
