"""What a difference does: how much of that of the loss vanishes with the reference's value in its place?

It informs, it does not decide: a difference without an effect is one all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite

from tensorprobe.compare.truth.difference import Difference
from tensorprobe.compare.truth.observable import Observables
from tensorprobe.replay.true_step import Array, TrueCall, TrueStep
from tensorprobe.replay.true_step_builder import Keeping

MAX_TRIED = 4
Exchanged = Mapping[tuple[str, str], Array]


def keep_losses(step: TrueStep) -> Keeping:
    """Nothing else is kept when a step is executed to see its effect, and nothing behind the last loss is executed."""
    makers = [maker for root in step.roots if (maker := step.maker(root)) is not None]
    last = max(makers, key=lambda call: call.position, default=None)
    return Keeping(frozenset(root.number for root in step.roots), last=None if last is None else last.name)


def add_effects(
    differences: Sequence[Difference],
    observed: Observables,
    steps: Mapping[str, TrueStep],
    replay: Callable[[Exchanged], TrueStep],
) -> list[Difference]:
    """With the effect of the first ones. `replay` executes the candidate with other results of calls."""
    gap = observed.candidate_total - observed.reference_total
    if not gap or observed.has_same_loss:
        return list(differences)
    tried = []
    for one in differences[:MAX_TRIED]:
        exchanged = find_exchanged(one, steps)
        if exchanged:
            total = sum(float(root.array.sum()) for root in replay(exchanged).roots)
            share = 1 - abs((total - observed.reference_total) / gap)
            one = replace(one, effect=share if isfinite(share) else None)
        tried.append(one)
    return [*tried, *differences[MAX_TRIED:]]


def find_exchanged(one: Difference, steps: Mapping[str, TrueStep]) -> Exchanged:
    """What the reference's call gives, for the candidate's; empty where it cannot be put there."""
    return dict(_find_values(one, steps))


def _find_values(one: Difference, steps: Mapping[str, TrueStep]) -> Iterator[tuple[tuple[str, str], Array]]:
    if one.reference is None or one.candidate is None or one.is_backward or one.leaf is not None:
        return
    reference, candidate = one.reference, one.candidate
    if one.region is not None:
        is_many = one.region.side == "candidate"
        reference, candidate = (reference, one.region.last) if is_many else (one.region.last, candidate)
    elif one.is_inside and not one.is_found:
        return  # they make different things
    if candidate.inside is not None:
        return  # only what recorded calls give can be exchanged
    pairs = zip(_results(reference, steps["reference"]), _results(candidate, steps["candidate"]), strict=False)
    for (_, value), (slot, own) in pairs:
        is_fitting = value.shape == own.shape if one.region is not None else value.size == own.size
        if is_fitting:
            yield (candidate.name, slot), value


def _results(call: TrueCall, step: TrueStep) -> Iterator[tuple[str, Array]]:
    for slot, number in call.outputs.items():
        if step.values[number].is_floating:
            yield slot, step.values[number].array
