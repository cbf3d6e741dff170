"""What a step makes of its parameters: the update of one run against that of the other.

An optimizer is a program like any other. Where its calls are recorded they are executed again, from the truth of the
gradients on, so that two ways to write it give the same parameters to the last digit, and another setting does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from tensorprobe.compare.truth.difference import Difference
from tensorprobe.compare.truth.end import GUARD
from tensorprobe.compare.truth.movement import NO_GRADIENT, find_unmoved
from tensorprobe.compare.truth.observable import GradientPair, arrange
from tensorprobe.compare.truth.same_array import TOLERANCE
from tensorprobe.compare.truth.start import LeafPair, pair_leaves
from tensorprobe.compare.truth.value_index import ZERO, Counterparts
from tensorprobe.model.count import count_noun
from tensorprobe.replay.true_step import Array, TrueStep, TrueValue

_SETTING = 1e-6
"""A setting may have been a number of float32 on one side: updates are the same to so many of their digits …"""
CLIPPING = "clipping"
"""… and to fewer where one run clips gradients."""
_GROWTH = 1e3
"""Where truth is coarse, an update may be so many times coarser: what divides by the size of a gradient …"""
_LEAST_GRADIENT = 1e-3
"""… knows no small errors, unless it is so much of the largest one."""
_COARSEST = 1e-5
_SMALL = 1e-6
"""A part of an update that is so much smaller than the largest one is the noise of a gradient that is zero."""
_ALIKE = 0.9
"""The cosine of two states of an optimizer that belong together: those of two parameters have nothing in common."""


_NEAR = 0.05
"""So much of its size may rounding have moved a state. Twice as much is another update."""


@dataclass(frozen=True, eq=False)
class UpdatePair:
    """One parameter after the step, in both runs."""

    reference: TrueValue
    candidate: TrueValue
    error: float
    """Of the difference, relative to what the update changed."""
    tolerance: float = _SETTING

    @property
    def is_equal(self) -> bool:
        return self.error <= self.tolerance

    def value(self, side: str) -> TrueValue:
        return self.reference if side == "reference" else self.candidate

    @property
    def name(self) -> str:
        return self.reference.parameter or self.candidate.parameter or self.reference.slot


def find_updated(step: TrueStep) -> Mapping[str, TrueValue]:
    """The parameters that calls of the step changed, as they are after it."""
    last = {value.parameter: value for value in step.values if value.parameter is not None and value.is_trained}
    return {name: value for name, value in last.items() if not value.is_leaf}


def pair_updates(counterparts: Counterparts, gradients: Sequence[GradientPair]) -> tuple[UpdatePair, ...]:
    """The parameters that one of the runs updates by calls that were executed again, where both update any; none where
    truth is too coarse for it."""
    updated = {side: find_updated(step) for side, step in counterparts.steps.items()}
    tolerance = counterparts.tolerance
    if tolerance > _COARSEST or not all(updated.values()):
        return ()
    hidden = {side: _find_hidden(step) for side, step in counterparts.steps.items()}
    found, taken = [], dict[int, TrueValue]()
    largest_gradient = max(
        (_find_largest(leaf) for pair in gradients for leaf in (pair.reference, pair.candidate)), default=0.0
    )
    floor = largest_gradient * (ZERO if tolerance <= TOLERANCE else _LEAST_GRADIENT)
    for pair in gradients:
        reference = _find_after(pair.reference, counterparts.steps["reference"], updated["reference"], taken)
        candidate = _find_after(pair.candidate, counterparts.steps["candidate"], updated["candidate"], taken)
        is_coarse = counterparts.gradient_tolerance([pair.reference], [pair.candidate]) > tolerance
        if (reference.is_leaf and candidate.is_leaf) or reference.is_pinned or candidate.is_pinned or is_coarse:
            continue
        both = (("reference", reference), ("candidate", candidate))
        if any(value.is_leaf and value.number in hidden[side] for side, value in both):
            continue
        changes = _find_changes(pair, reference, candidate, floor)
        if changes is not None:
            found.append((reference, candidate, *changes))
    largest = max((float(np.abs(one).max(initial=0.0)) for *_, one, _ in found), default=0.0)
    is_clipped = any(call.caller == CLIPPING for step in counterparts.steps.values() for call in step.calls.values())
    setting = GUARD if is_clipped else _SETTING
    return tuple(
        UpdatePair(reference, candidate, _compare(first, second, largest), max(setting, _GROWTH * tolerance))
        for reference, candidate, first, second in found
    )


def _find_after(
    leaf: TrueValue, step: TrueStep, updated: Mapping[str, TrueValue], taken: dict[int, TrueValue]
) -> TrueValue:
    """What the step makes of this leaf; the leaf where it makes nothing of it. A view, such as `weight.T`, has no name:
    it holds the numbers of a parameter that calls take in no other form before its update. Two layers may start with
    the same numbers: the first one `taken` is the one that is used first."""
    if leaf.parameter is not None or leaf.gradient is None:
        return updated.get(leaf.parameter or "", leaf)
    for whole in step.leaves:
        after = updated.get(whole.parameter or "")
        if after is None or whole.gradient is not None or whole.array.size != leaf.array.size:
            continue
        if taken.get(id(whole), leaf) is not leaf:
            continue
        order = arrange(whole.array, leaf.array, np.arange(whole.array.size).reshape(whole.array.shape))
        if order is not None:
            taken[id(whole)] = leaf
            return replace(after, array=after.array.reshape(-1)[order.reshape(-1)].reshape(leaf.array.shape))
    return leaf


def _find_hidden(step: TrueStep) -> Set[int]:
    """The leaves that something may have been made of that is not known: by one compiled call, or by calls that could
    not be executed again."""
    if step.updates_unseen:
        return {leaf.number for leaf in step.leaves}
    calls = (call for call in step.calls.values() if call.name in step.coverage.gaps)
    return {number for call in calls for number in call.inputs.values()}


def find_left_alone(pairs: Sequence[UpdatePair], steps: Mapping[str, TrueStep]) -> list[Difference]:
    """What only one run updates."""
    found = []
    for side, other in (("reference", "candidate"), ("candidate", "reference")):
        alone = [pair for pair in pairs if not pair.is_equal and pair.value(other).is_leaf]
        if alone:
            others = f" and {count_noun(len(alone) - 1, 'other')}" if alone[1:] else ""
            because = f"only the {side} updates {alone[0].name}{others}"
            call = steps[side].maker(alone[0].value(side))
            first, second = (call, None) if side == "reference" else (None, call)
            found.append(Difference("source", first, second, because, is_clear=True))
    return found


def pair_states(counterparts: Counterparts) -> tuple[list[LeafPair], Set[tuple[int, ...]]]:
    """What both runs hold besides the parameters at the start of a later step, where rounding has moved it: what an
    optimizer keeps, and what leads to no loss, such as means of the parameters. And the shapes of what has no partner,
    and may be more than the rounding of a gradient that is zero: of such parameters no update is known."""
    lone = {side: list(_find_states(side, counterparts)) for side in counterparts.steps}
    noise = {side: _find_noise(lone[side], step) for side, step in counterparts.steps.items()}
    found, unknown = [], set[tuple[int, ...]]()
    for value in lone["candidate"]:
        alike = [one for one in lone["reference"] if one.array.shape == value.array.shape]
        best = min(alike, key=lambda one: _distance(one.array, value.array), default=None)
        if best is not None and _distance(best.array, value.array) >= _NEAR:
            best = max(alike, key=lambda one: _cosine(one.array, value.array))
        is_noise = False
        if best is None or _cosine(best.array, value.array) < _ALIKE:
            others = [one for one in alike if one.number in noise["reference"]]
            is_noise = bool(others) and value.number in noise["candidate"]
            if not is_noise:
                unknown.add(value.array.shape)
                continue
            best = min(others, key=lambda one: abs(np.log(_size(one.array) / _size(value.array))))
        lone["reference"].remove(best)
        if is_noise or _distance(best.array, value.array) < _NEAR:
            found.append(pair_leaves(best, value))
    return found, unknown


def _find_largest(leaf: TrueValue) -> float:
    return float(np.abs(leaf.gradient).max(initial=0.0)) if leaf.gradient is not None else 0.0


def _find_changes(
    pair: GradientPair, reference: TrueValue, candidate: TrueValue, floor: float
) -> tuple[Array, Array] | None:
    """What both updates add, element by element, where both have gradients. What is below `floor` is zero in exact
    arithmetic: what divides by its size makes a whole step of noise."""
    origin = pair.find_origin(pair.name)
    gradient, other = pair.reference.gradient, pair.candidate.gradient
    if origin is None or gradient is None or other is None:
        return None
    if reference.array.size != pair.reference.array.size or candidate.array.size != pair.candidate.array.size:
        return None
    first = (reference.array - pair.reference.array.reshape(reference.array.shape)).reshape(-1)[origin.take]
    second = (candidate.array - pair.candidate.array.reshape(candidate.array.shape)).reshape(-1)[origin.put]
    sizes = np.minimum(np.abs(gradient.reshape(-1)[origin.take]), np.abs(other.reshape(-1)[origin.put]))
    is_told = sizes > floor
    return first[is_told], second[is_told]


def _compare(first: Array, second: Array, largest: float) -> float:
    scale = max(float(np.linalg.norm(first)), float(np.linalg.norm(second)), _SMALL * largest * first.size**0.5)
    difference = float(np.linalg.norm(first - second))
    return difference / scale if scale and np.isfinite(difference) else 0.0


def _find_states(side: str, counterparts: Counterparts) -> Iterator[TrueValue]:
    step = counterparts.steps[side]
    for value in step.leaves:
        if not value.is_floating or value.parameter is not None or value.is_gradient or value.updated is not None:
            continue
        is_held = all(call.caller is not None for call in step.users.get(value.number, ()))
        if (is_held or not step.leads_to_loss(value)) and not counterparts.exists(side, value):
            yield value


def _find_noise(states: Sequence[TrueValue], step: TrueStep) -> Set[int]:
    """What an optimizer keeps of gradients that are zero but for rounding, as that of a bias before a softmax: it is
    much smaller than what it keeps of the others in the same place."""
    unmoved = find_unmoved(step)
    shapes = {leaf.array.shape for leaf in step.leaves if leaf.parameter in unmoved}
    sizes: dict[tuple[str, str], dict[int, float]] = {}
    for state in states:
        for call in step.users.get(state.number, ()):
            for slot in (slot for slot, number in call.inputs.items() if number == state.number):
                place = call.op, ".".join(slot.split(".")[:2])
                sizes.setdefault(place, {})[state.number] = float(np.abs(state.array).max(initial=0.0))
    is_possible = {state.number: state.array.shape in shapes for state in states}
    found = set[int]()
    for alike in sizes.values():
        least = NO_GRADIENT * max(alike.values())
        found.update(number for number, size in alike.items() if size <= least and is_possible[number])
    return found


def _size(array: Array) -> float:
    return float(max(np.linalg.norm(array), np.finfo(np.float64).tiny))


def _distance(first: Array, second: Array) -> float:
    size = float(np.linalg.norm(first))
    return float(np.linalg.norm(first - second)) / size if size else 0.0


def _cosine(first: Array, second: Array) -> float:
    size = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first.reshape(-1) @ second.reshape(-1)) / size if size else 0.0
