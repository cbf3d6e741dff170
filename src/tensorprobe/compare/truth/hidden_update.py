"""Parameters that a call changed unseen: MindSpore's optimizers are one compiled call each. What they became shows
where a later call of the step takes them, such as a mean of the weights. It is the rounding of what the other run made
of them, or they were updated otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tensorprobe.compare.truth.difference import Difference
from tensorprobe.compare.truth.end import find_given_to_optimizers, find_made_of_gradients
from tensorprobe.compare.truth.movement import NO_GRADIENT
from tensorprobe.compare.truth.observable import GradientPair
from tensorprobe.compare.truth.update import CLIPPING, find_updated
from tensorprobe.compare.truth.value_index import Counterparts, other_side
from tensorprobe.model.count import count_noun
from tensorprobe.replay.true_step import UNITS, Array, TrueStep, TrueValue

_UNITS = 8.0
"""So many roundings of a parameter may an update cost …"""
_SHARE = 1e-4
"""… and so much of its own size: gradients are rounded, too, by so many units of the largest one."""
_GRADIENT_UNITS = 256.0
_OTHER_WAY = 2.0
"""A gradient that is nothing but rounding may have the other sign."""
_UNTOUCHED = "one run clips the gradients before its optimizer gets them, the other does not"


@dataclass(frozen=True, eq=False)
class HiddenUpdate:
    """One parameter after it."""

    side: str
    leaf: TrueValue
    partner: TrueValue
    """The same parameter in the other run."""
    content: Array
    """What that is, as this run holds it."""
    is_near: bool


def find_hidden_updates(
    counterparts: Counterparts, gradients: Sequence[GradientPair], recorded: Mapping[str, TrueStep]
) -> Iterator[HiddenUpdate]:
    """Those whose parameter the other run is seen to update. `recorded`: both steps with the numbers that they started
    with, which at a later step are not the same."""
    known = (_own(pair, side).gradient for pair in gradients for side in counterparts.steps)
    largest = max((float(np.abs(one).max(initial=0.0)) for one in known if one is not None), default=0.0)
    for side, step in counterparts.steps.items():
        updated = find_updated(counterparts.steps[other_side(side)])
        for leaf in step.leaves:
            pairs = [
                pair for pair in gradients if leaf.updated and _own(pair, side).parameter == leaf.updated.parameter
            ]
            partners = [updated.get(_own(pair, other_side(side)).parameter or "") for pair in pairs]
            found = (
                _carry(side, leaf, pairs, partners, recorded[side], largest) if pairs and None not in partners else None
            )
            if found is not None:
                yield found


def _carry(
    side: str,
    leaf: TrueValue,
    pairs: Sequence[GradientPair],
    partners: Sequence[TrueValue | None],
    recorded_step: TrueStep,
    largest: float,
) -> HiddenUpdate | None:
    content, before, started = (leaf.array.reshape(-1).copy() for _ in range(3))
    share = np.full(content.size, _SHARE)
    unit = UNITS.get(leaf.dtype, 0.0)
    for pair, partner in zip(pairs, partners, strict=True):
        origin = pair.find_origin("")
        if origin is None or partner is None or _own(pair, side).array.size != content.size:
            return None
        here, there = (origin.put, origin.take) if side == "candidate" else (origin.take, origin.put)
        content[here] = partner.array.reshape(-1)[there]
        own = _own(pair, side)
        before[here], started[here] = (
            own.array.reshape(-1)[here],
            recorded_step.values[own.number].array.reshape(-1)[here],
        )
        share[here] = np.maximum(_SHARE, _find_rounding(_own(pair, side), unit, largest)[here])
    numbers = leaf.array.reshape(-1)
    rounding = _UNITS * unit * (np.abs(before) + np.abs(numbers))
    recorded = before + numbers - started  # the same update, of what the other run holds before it
    way = max(float(np.abs(one - before).max(initial=0.0)) for one in (content, recorded))
    apart = np.abs(recorded - content)
    is_near = bool(np.all(apart <= rounding + share * way))
    # an optimizer makes as much of a gradient that was nothing but rounding some steps ago
    is_near = is_near or float(np.linalg.norm(apart)) <= _SHARE * float(np.linalg.norm(content - before))
    assert partners[0] is not None
    return HiddenUpdate(side, leaf, partners[0], content.reshape(leaf.array.shape), is_near)


def _find_rounding(parameter: TrueValue, unit: float, largest: float) -> Array:
    """How far each element of its gradient may be from its truth, relative to it: an optimizer that divides by what
    they are large makes as much of the small ones, which are rounded as the large ones are that they come from."""
    if parameter.gradient is None:
        return np.zeros(parameter.array.size)
    sizes = np.abs(parameter.gradient.reshape(-1))
    room = _GRADIENT_UNITS * unit * max(float(sizes.max(initial=0.0)), NO_GRADIENT * largest)
    found: Array = np.minimum(room / np.maximum(sizes, np.finfo(np.float64).tiny), _OTHER_WAY)
    largest_own = float(sizes.max(initial=0.0))
    if largest_own == 0 or largest_own > NO_GRADIENT * largest:
        found[sizes == 0] = 0.0  # that of what is not used is no rounding
    return found


def describe_hidden_updates(found: Sequence[HiddenUpdate], steps: Mapping[str, TrueStep]) -> list[Difference]:
    """All of one run at once: its optimizer."""
    if not found:
        return []
    first = found[0]
    assert first.leaf.updated is not None
    others = f" and {count_noun(len(found) - 1, 'other')} are" if found[1:] else " is"
    calls = {
        first.side: steps[first.side].calls.get(first.leaf.updated.by),
        other_side(first.side): steps[other_side(first.side)].maker(first.partner),
    }
    because = f"{first.leaf.updated.parameter}{others} updated differently"
    return [Difference("source", calls["reference"], calls["candidate"], because, is_clear=True)]


def find_untouched(counterparts: Counterparts) -> list[Difference]:
    """A compiled optimizer is given gradients as they are, which the other run clips first: there no call that takes
    more than what comes of gradients takes them."""
    for side, step in counterparts.steps.items():
        other = counterparts.steps[other_side(side)]
        used = _find_used_with_others(other) if step.updates_unseen else set()
        for one in find_given_to_optimizers(step) if used else ():
            alike = {like.number for like in counterparts.of(side, one)} if one.is_leaf else set()
            users = [user for number in sorted(alike) for user in other.users.get(number, ())]
            clipping = next((user for user in users if user.caller == CLIPPING), None)
            if clipping is not None and used.isdisjoint(alike):
                taking = next(call for call in step.users[one.number] if call.caller is not None)
                calls = {side: taking, other_side(side): clipping}
                return [Difference("source", calls["reference"], calls["candidate"], _UNTOUCHED, is_clear=True)]
    return []


def _find_used_with_others(step: TrueStep) -> set[int]:
    """Which of what comes of gradients a call takes together with other numbers, as an optimizer does."""
    made, found = {one.number for one in find_made_of_gradients(step)}, set[int]()
    for call in step.calls.values():
        taken = {number for number in call.inputs.values() if step.values[number].is_floating}
        if not taken <= made or (step.updates_unseen and call.caller is not None):
            found |= taken & made
    return found


def _own(pair: GradientPair, side: str) -> TrueValue:
    return pair.reference if side == "reference" else pair.candidate
