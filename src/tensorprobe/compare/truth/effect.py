"""What a difference does: how much of that of the loss vanishes with the reference's value in its place?

It informs, it does not decide: a difference without an effect is one all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite

from tensorprobe.compare.truth.difference import Difference
from tensorprobe.compare.truth.observable import Observables
from tensorprobe.replay.true_step import Array, TrueCall, TrueStep, TrueValue
from tensorprobe.replay.true_step_builder import Keeping

MAX_TRIED = 4
Exchanged = Mapping[tuple[str, str], Array]


class Trial:
    """Executes the candidate with other results of calls, and looks at the loss."""

    def __init__(
        self, observed: Observables, candidate: TrueStep, replay: Callable[[Exchanged, Keeping], TrueStep]
    ) -> None:
        self._observed = observed
        self._replay = replay
        self._candidate = candidate
        self._losses = [root.number for root in candidate.roots]

    def execute(self, exchanged: Exchanged, numbers: Sequence[int] = ()) -> TrueStep:
        """Nothing but the losses and these values is kept, and nothing behind the last of them is executed."""
        wanted = (*self._losses, *numbers)
        made = (self._candidate.maker(self._candidate.values[number]) for number in sorted(wanted, reverse=True))
        last = max((call for call in made if call is not None), key=lambda call: call.position, default=None)
        return self._replay(exchanged, Keeping(frozenset(wanted), last=None if last is None else last.name))

    def find_effect(self, exchanged: Exchanged) -> float | None:
        """The share of the loss's difference that vanishes."""
        left = _add_up_losses(self.execute(exchanged)) - self._observed.reference_total
        share = 1 - abs(left / (self._observed.candidate_total - self._observed.reference_total))
        return share if isfinite(share) else None

    def is_healed(self, step: TrueStep) -> bool:
        """Is its loss that of the reference?"""
        return replace(self._observed, candidate_total=_add_up_losses(step)).has_same_loss


def _add_up_losses(step: TrueStep) -> float:
    return sum(float(root.array.sum()) for root in step.roots)


def add_effects(differences: Sequence[Difference], steps: Mapping[str, TrueStep], trial: Trial) -> list[Difference]:
    """With the effect of the first ones."""
    tried = []
    for one in differences[:MAX_TRIED]:
        exchanged = find_exchanged(one, steps)
        tried.append(replace(one, effect=trial.find_effect(exchanged)) if exchanged else one)
    return [*tried, *differences[MAX_TRIED:]]


def find_place(value: TrueValue, step: TrueStep) -> tuple[str, str] | None:
    """The call that made it, and as which of its results; None where nothing can be put there."""
    maker = step.maker(value)
    if maker is None or maker.inside is not None:
        return None
    return next(((maker.name, slot) for slot, number in maker.outputs.items() if number == value.number), None)


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
