"""Tables and masks that one run starts from and the other computes: cosines by position, which tokens are seen.

Of runs with statistics only nothing is known of the numbers they start from; but what the other run computes of
nothing can be computed again. It is the same if it has the recorded statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace

import numpy as np

from tensorprobe.compare.truth.value_index import Counterparts, other_side
from tensorprobe.model.dtype import short_dtype
from tensorprobe.model.name import FORWARD
from tensorprobe.replay.true_step import Array, LeafKey, TrueStep, TrueValue
from tensorprobe.run.step import Run
from tensorprobe.store.sketch import sketch_array
from tensorprobe.store.slot import TensorSlot

_ROUNDING = 3e-6
"""Two frameworks compute a cosine with other last digits: their statistics are so near."""
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
    return any(is_near(one, leaf) or (_is_mask(leaf) and is_near(_invert(one), leaf)) for one in found)


def content_of(slot: TensorSlot) -> object:
    """Equal for tensors that are the same, as far as their record tells."""
    return slot.shape, slot.dtype, slot.max, slot.min, slot.mean, slot.norm, slot.sketch


def by_count(run: Run) -> dict[int, list[TensorSlot]]:
    found: dict[int, list[TensorSlot]] = {}
    for slot in iter_results(run):
        found.setdefault(slot.element_count or 0, []).append(slot)
    return found


def is_near(slot: TensorSlot, other: TensorSlot) -> bool:
    """Are their statistics the same, but for the rounding of each number?"""
    if _kind(slot) != _kind(other):
        return False
    both = [tuple(map(_number, (one.max, one.min, one.mean, one.norm))) for one in (slot, other)]
    numbers = list(zip(*both, strict=True))
    if not all(math.isfinite(one) for pair in numbers for one in pair):
        return both[0][:2] == both[1][:2]
    largest = max(abs(one) for pair in numbers[:2] for one in pair)
    size = max(*(abs(one) for one in numbers[3]), 0.0)
    is_like = all(abs(first - second) <= _ROUNDING * largest for first, second in numbers[:3])
    return is_like and abs(numbers[3][0] - numbers[3][1]) <= _ROUNDING * size


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
    known, left = set[object](), _MOST_ELEMENTS
    for side, step in counterparts.steps.items():
        others = counterparts.steps[other_side(side)]
        made: dict[int, list[TrueValue]] = {}
        for value in others.values:
            if not value.is_leaf and not value.is_pinned:
                made.setdefault(value.array.size, []).append(value)
        for leaf in step.leaves:
            wanted = None if leaf.is_trained or leaf.key is None else _find_record(leaf, step, runs[side])
            for value in made.get(leaf.array.size, ()) if wanted is not None else ():
                left -= value.array.size
                content = _fit(value.array, wanted) if wanted is not None and left > 0 else None
                if content is not None and leaf.key is not None and wanted is not None:
                    found[side][leaf.key] = content.reshape(leaf.array.shape)
                    known.add(content_of(wanted))
                    break
    return ComputedLeaves(found, known)


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
    kinds = {"b": "bool", "i": "int", "u": "int"}
    if kinds.get(content.dtype.kind, "float") != _kind(wanted) or not content.size:
        return False
    wide = content.astype(np.float64)
    sketch = sketch_array(np.ascontiguousarray(wide))
    if sketch is None or wanted.sketch is None:
        return False
    with np.errstate(all="ignore"):
        numbers = (wide.max(), wide.min(), wide.mean(), np.linalg.norm(wide))
    largest, smallest, mean, norm = map(float, numbers)
    if not is_near(replace(wanted, max=largest, min=smallest, mean=mean, norm=norm), wanted):
        return False
    distance = math.sqrt(sum((one - other) ** 2 for one, other in zip(sketch, wanted.sketch, strict=True)))
    return distance <= 4 * _ROUNDING * norm if math.isfinite(norm) else distance <= _ROUNDING


def _is_mask(slot: TensorSlot) -> bool:
    return _kind(slot) == "bool"


def _invert(slot: TensorSlot) -> TensorSlot:
    """The statistics of what a mask leaves out."""
    if _kind(slot) != "bool":
        return slot
    count, mean = slot.element_count or 0, 1.0 - _number(slot.mean)
    return replace(
        slot, max=1 - int(slot.min or 0), min=1 - int(slot.max or 0), mean=mean, norm=math.sqrt(mean * count)
    )


def _kind(slot: TensorSlot) -> str:
    dtype = short_dtype(slot.dtype)
    return "int" if dtype.startswith(("int", "uint")) else "bool" if dtype == "bool" else "float"


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan
