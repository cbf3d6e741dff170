"""A batch that one run computes in parts, one after the other, with a loss of each: what the parts compute is put
together again, so that it can be held against what the other run computes of all of it at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.compare.truth.same_array import TOLERANCE
from tensorprobe.replay.true_step import Array, TrueCall, TrueStep, TrueValue

_NOTHING = np.zeros(0)
"""What is left of the values of other parts: each value keeps its number."""


def join_batch(step: TrueStep, other: TrueStep) -> TrueStep | None:
    """The step as if it had computed its parts at once: the calls are those of the first one. None where it has no
    parts, or as many as the other run."""
    if len(step.roots) < 2 or len(step.roots) == len(other.roots):
        return None
    parts = [list(part) for part in _iter_parts(step)]
    twins = _find_twins(parts) if parts[0] and _are_alike(parts) else None
    return None if twins is None else _join(step, parts, twins, _Arrays(other))


def _iter_parts(step: TrueStep) -> Iterator[list[TrueCall]]:
    """The calls that lead to each loss, and to no other one."""
    ordered = sorted(step.calls.values(), key=lambda call: call.position)
    leading = []
    for root in step.roots:
        before = step.find_before({root.number}) | {root.number}
        leading.append([call for call in ordered if not before.isdisjoint(call.outputs.values())])
    counts = Counter(call.name for calls in leading for call in calls)
    yield from ([call for call in calls if counts[call.name] == 1] for calls in leading)


def _are_alike(parts: Sequence[Sequence[TrueCall]]) -> bool:
    kinds = [list(map(_kind_of, part)) for part in parts]
    return all(one == kinds[0] for one in kinds[1:])


def _kind_of(call: TrueCall) -> tuple[str, str | None, list[str], list[str]]:
    return word_of(call), call.module_path, sorted(call.inputs), sorted(call.outputs)


def _find_twins(parts: Sequence[Sequence[TrueCall]]) -> dict[int, tuple[int, ...]] | None:
    """Each value of the first part with those that stand in its place in the others; None if one stands in several."""
    found: dict[int, tuple[int, ...]] = {}
    for calls in zip(*parts, strict=True):
        for slots in ([call.inputs for call in calls], [call.outputs for call in calls]):
            for slot in slots[0]:
                twins = tuple(one[slot] for one in slots)
                if found.setdefault(twins[0], twins) != twins:
                    return None
    found = {number: twins for number, twins in found.items() if len(set(twins)) > 1}
    counts = Counter(number for twins in found.values() for number in twins)
    return found if all(count == 1 for count in counts.values()) else None


def _join(
    step: TrueStep, parts: Sequence[Sequence[TrueCall]], twins: dict[int, tuple[int, ...]], others: _Arrays
) -> TrueStep:
    first_of = {number: first for first, numbers in twins.items() for number in numbers}
    left_out = {call.name for part in parts[1:] for call in part}
    values: list[TrueValue] = []
    for value in step.values:
        is_joined = first_of.get(value.number, value.number) != value.number or value.maker in left_out
        arrays = [step.values[number].array for number in twins.get(value.number, (value.number,))]
        values.append(replace(value, array=_NOTHING if is_joined else others.put_together(arrays)))
    calls = {}
    for call in step.calls.values():
        inputs, outputs = (
            {slot: first_of.get(one, one) for slot, one in slots.items()} for slots in (call.inputs, call.outputs)
        )
        if call.name not in left_out:
            calls[call.name] = replace(call, inputs=inputs, outputs=outputs)
    return replace(step, calls=calls, values=values)


class _Arrays:
    """What the other run has, to tell along which axis parts belong together."""

    def __init__(self, step: TrueStep) -> None:
        self._by_size: dict[int, list[Array]] = {}
        for value in step.values:
            self._by_size.setdefault(value.array.size, []).append(value.array.reshape(-1))

    def put_together(self, arrays: Sequence[Array]) -> Array:
        """As the other run has it: along some axis, their sum or their mean. If it has none, along the first axis."""
        first = arrays[0]
        is_alike = all(one.shape == first.shape for one in arrays[1:])
        if is_alike and all(np.array_equal(one, first) for one in arrays[1:]):
            return first
        if is_alike and first.dtype.kind in "fc":
            total = np.sum(arrays, axis=0)
            found = next((one for one in (total, total / len(arrays)) if self._has(one)), None)
            if found is not None:
                return np.asarray(found)
        if not first.ndim and is_alike:
            return np.stack(arrays)
        if any(one.ndim != first.ndim for one in arrays[1:]):  # a last part of one row, squeezed
            return first
        sizes = ({one.shape[:axis] + one.shape[axis + 1 :] for one in arrays} for axis in range(first.ndim))
        joined = (np.concatenate(arrays, axis) for axis, rest in enumerate(sizes) if len(rest) == 1)
        found = next(joined, None)
        if found is None:
            return first
        return next((one for one in (found, *joined) if self._has(one)), found)

    def _has(self, array: Array) -> bool:
        flat = array.reshape(-1)
        return any(
            abs(one[0] - flat[0]) <= TOLERANCE * abs(flat[0]) and np.allclose(one, flat, TOLERANCE, 0)
            for one in self._by_size.get(flat.size, ())
            if flat.size and one.dtype.kind == flat.dtype.kind != "b"
        )
