"""Leaves that two runs do not share: what they began with is not the same.

Whether that is all that differs is tried out: the candidate is executed again with the reference's numbers in their
place. At a later step this is as it should be, as far as rounding goes: there the question is how far the parameters
have moved since the step before, and whether they went the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tensorprobe.compare.truth.value_index import Counterparts, word_of
from tensorprobe.replay.true_step import Array, LeafKey, TrueStep, TrueValue

_LEAST_MOVE = 0.01
_ROUNDING_MOVE = 8.0
"""An optimizer that divides by the size of the gradient turns the rounding of a small one into a whole step: so many
times the root of the unit of rounding may a parameter go another way."""
_NO_GRADIENT = 1e-4
"""Where the gradient of a parameter is so much smaller than the largest one, it is rounding."""


@dataclass(frozen=True)
class LeafPair:
    """One leaf of each run, in the same place, with other numbers."""

    reference: TrueValue
    candidate: TrueValue

    @property
    def name(self) -> str:
        return self.candidate.parameter or self.reference.parameter or self.candidate.slot

    @property
    def difference(self) -> Array:
        return np.asarray(self.reference.array.reshape(-1) - self.candidate.array.reshape(-1))

    @property
    def is_any_different(self) -> bool:
        return not np.array_equal(self.reference.array.reshape(-1), self.candidate.array.reshape(-1))

    @property
    def error(self) -> float | None:
        """Relative to the reference; None for what is no number."""
        if not self.reference.is_floating or not self.candidate.is_floating:
            return None
        scale = float(np.linalg.norm(self.reference.array))
        return float(np.linalg.norm(self.difference)) / scale if scale else None

    def replacement(self) -> tuple[LeafKey, Array] | None:
        """The reference's numbers, for the candidate."""
        key = self.candidate.key
        return None if key is None else (key, self.reference.array.reshape(self.candidate.array.shape))


@dataclass(frozen=True)
class EarlierStep:
    """What the step before leaves for this one to be judged by."""

    names: Mapping[str, str] = field(default_factory=dict)
    """The parameters of the candidate, each with that of the reference that it is."""
    parameters: Mapping[str, Array] = field(default_factory=dict)
    """The reference's, before its last update."""
    distances: Mapping[str, float] = field(default_factory=dict)
    """How far those of the candidate were from them."""


def pair_lone_leaves(counterparts: Counterparts, names: Mapping[str, str]) -> list[LeafPair]:
    """What neither run shares with the other: parameters by their names, data by the calls that take it."""
    leaves = {side: list(step.leaves) for side, step in counterparts.steps.items()}
    lone = {side: {one for one in values if not counterparts.exists(side, one)} for side, values in leaves.items()}
    is_known = _is_named(names)  # of two of one name one may exist elsewhere all the same: zeros
    found = [
        pair
        for pair in _pair(leaves["reference"], leaves["candidate"], is_known)
        if pair.reference in lone["reference"]
        or pair.candidate in lone["candidate"]
        or (names and pair.is_any_different)
    ]
    for rule in (_is_used_alike(counterparts), _is_of_kind):
        taken = {value for pair in found for value in (pair.reference, pair.candidate)}
        left = {side: [one for one in values if one in lone[side] - taken] for side, values in leaves.items()}
        found += _pair(left["reference"], left["candidate"], rule)
    return sorted(found, key=lambda pair: pair.candidate.number)


def _pair(references: Sequence[TrueValue], candidates: Sequence[TrueValue], rule: Rule) -> Iterator[LeafPair]:
    left = list(references)
    for value in candidates:
        partner = next((one for one in left if one.array.size == value.array.size and rule(one, value)), None)
        if partner is not None:
            left.remove(partner)
            yield LeafPair(partner, value)


Rule = Callable[[TrueValue, TrueValue], bool]


def _is_named(names: Mapping[str, str]) -> Rule:
    def decide(reference: TrueValue, candidate: TrueValue) -> bool:
        own = candidate.parameter
        return own is not None and reference.parameter == names.get(own, own)

    return decide


def _is_used_alike(counterparts: Counterparts) -> Rule:
    def decide(reference: TrueValue, candidate: TrueValue) -> bool:
        calls = _user(counterparts.steps["reference"], reference), _user(counterparts.steps["candidate"], candidate)
        return calls[0] == calls[1] and _is_of_kind(reference, candidate)

    return decide


def _is_of_kind(reference: TrueValue, candidate: TrueValue) -> bool:
    has_names = reference.parameter is not None, candidate.parameter is not None
    return has_names[0] == has_names[1] and reference.is_floating == candidate.is_floating


def _user(step: TrueStep, value: TrueValue) -> str:
    users = step.users.get(value.number, [])
    return word_of(users[0]) if users else ""


def find_moved_otherwise(
    pairs: Sequence[LeafPair], earlier: EarlierStep, unit: float
) -> Iterator[tuple[LeafPair, float]]:
    """The parameters that went another way in the last update, with how much of its length they are apart by."""
    gradients = [_density(pair.reference) for pair in pairs]
    largest = max(gradients, default=0.0)
    for pair, gradient in zip(pairs, gradients, strict=True):
        before = earlier.parameters.get(pair.reference.parameter or "")
        if before is None or gradient <= _NO_GRADIENT * largest or before.size != pair.reference.array.size:
            continue
        moved = float(np.linalg.norm(pair.reference.array.reshape(-1) - before.reshape(-1)))
        apart = float(np.linalg.norm(pair.difference)) - earlier.distances.get(pair.reference.parameter or "", 0.0)
        if moved and apart > max(_LEAST_MOVE, _ROUNDING_MOVE * unit**0.5) * moved:
            yield pair, apart / moved


def _density(value: TrueValue) -> float:
    """The size of one element of its gradient."""
    if value.gradient is None or not value.gradient.size:
        return 0.0
    return float(np.linalg.norm(value.gradient) / np.sqrt(value.gradient.size))
