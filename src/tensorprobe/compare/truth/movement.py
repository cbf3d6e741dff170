"""How the parameters of two runs moved from one step to the next: the same way, as far as rounding goes?

What an optimizer computes need not be recorded: in MindSpore it is one graph. Then the parameters of two steps are all
that shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tensorprobe.compare.truth.start import LeafPair, Origins
from tensorprobe.replay.true_step import UNITS, Array, TrueStep, TrueValue

_LEAST_MOVE = 0.01
_ROUNDING_MOVE = 8.0
"""An optimizer that divides by the size of the gradient turns the rounding of a small one into a whole step: so many
times the root of the unit of rounding may a parameter go another way."""
NO_GRADIENT = 1e-4
"""Where the gradient of a parameter is so much smaller than the largest one, it is rounding."""
_LEAST_FACTOR = 5e-4
"""Settings that were rounded, and an epsilon in another place, make all numbers move by less."""
_UNIFORM = 0.2
"""So much of a difference that is one factor may be something else."""
_MOST = 0.5
"""So much of the way of all parameters together is not left out by rounding, which goes to either side."""
_MOST_SPREAD = 2.0
"""An update goes as far apart as the gradients that it is made of, which rounding moves besides."""
_LEAST_COUNT = 8
"""Fewer numbers are multiples of others by chance."""
_FINE = 1e-6
"""Where rounding is coarser, small moves are lost, and all others look longer."""


@dataclass(frozen=True)
class EarlierStep:
    """What the step before leaves for this one to be judged by."""

    origins: Origins = field(default_factory=dict)
    parameters: Mapping[str, Array] = field(default_factory=dict)
    """The reference's, before its last update."""
    differences: Mapping[str, Array] = field(default_factory=dict)
    """How much larger they were than those of the candidate, by the names of these."""
    has_same_updates: bool = False
    """Do both runs mean to make the same of them?"""
    unmoved: Collection[str] = ()
    """The parameters of the reference whose gradient was nothing but rounding: what moved them was no more."""
    spread: Mapping[str, float] = field(default_factory=dict)
    """How far apart the gradients of the candidate's parameters were for no other reason than that these were."""


@dataclass(frozen=True)
class Movement:
    """What the last update did to one parameter of the candidate, where its gradient is more than rounding."""

    name: str
    length: float
    """How far the reference's went, all of it."""
    way: Array
    """Of the reference."""
    apart: Array
    """How much of it the candidate did not go."""
    growth: float
    """How much further apart the parameters are than before."""
    unrounded: float = 0.0
    """The same without what storing each number may have rounded to the other side."""

    @property
    def share(self) -> float:
        return self.growth / self.length if self.length else 0.0

    @property
    def factor(self) -> float | None:
        """How many times as far the candidate's went, if it is the same way, and not as far."""
        size, distance = float(self.way @ self.way), float(np.linalg.norm(self.apart))
        less = float(self.apart @ self.way) / size if size else 0.0
        is_uniform = float(np.linalg.norm(self.apart - less * self.way)) < _UNIFORM * distance
        is_meant = is_uniform and abs(less) > _LEAST_FACTOR and self.way.size >= _LEAST_COUNT
        return 1 - less if is_meant else None


def find_unmoved(step: TrueStep) -> frozenset[str]:
    """The parameters whose gradient is nothing but rounding, as that of a bias before a norm."""
    leaves = [leaf for leaf in step.leaves if leaf.parameter is not None and leaf.gradient is not None]
    floor = NO_GRADIENT * max(map(_density, leaves), default=0.0)
    return frozenset(leaf.parameter for leaf in leaves if leaf.parameter is not None and _density(leaf) <= floor)


def measure_spread(own: TrueStep, other: TrueStep) -> dict[str, float]:
    """How far the gradient of each parameter is from the one that it has with other parameters, as a share of that."""
    gradients = {leaf.key: leaf.gradient for leaf in own.leaves if leaf.gradient is not None}
    found = {}
    for leaf in other.leaves:
        gradient = gradients.get(leaf.key)
        if leaf.parameter is not None and leaf.gradient is not None and gradient is not None:
            size = float(np.linalg.norm(leaf.gradient))
            found[leaf.parameter] = float(np.linalg.norm(gradient - leaf.gradient)) / size if size else 0.0
    return found


def find_moved_otherwise(
    pairs: Sequence[LeafPair], steps: Mapping[str, TrueStep], earlier: EarlierStep, unit: float
) -> list[Movement]:
    """The parameters that went another way in the last update, or not as far."""
    most = max(_LEAST_MOVE, _ROUNDING_MOVE * unit**0.5)
    movements = list(_find_movements(pairs, steps, earlier))
    if sum(float(one.apart @ one.way) for one in movements) < _MOST * sum(
        float(one.way @ one.way) for one in movements
    ):
        movements = [replace(one, growth=one.unrounded) for one in movements]
    return [
        one for one in movements if _is_otherwise(one, most, unit, _MOST_SPREAD * earlier.spread.get(one.name, 0.0))
    ]


def _is_otherwise(one: Movement, most: float, unit: float, spread: float) -> bool:
    """`spread`: the share that other gradients explain, which come of other parameters, however near these were."""
    if one.share <= spread:
        return False
    return one.share > most or (unit < _FINE and one.factor is not None)


def _find_movements(
    pairs: Sequence[LeafPair], steps: Mapping[str, TrueStep], earlier: EarlierStep
) -> Iterator[Movement]:
    largest = max(map(_density, steps["reference"].leaves), default=0.0)
    for pair in pairs:
        then = _find_before(pair, steps["candidate"], earlier)
        if then is None or _density(pair.reference) <= NO_GRADIENT * largest:
            continue
        before = earlier.differences.get(pair.name, np.zeros(1)).reshape(-1)
        is_told = _find_followed(pair, NO_GRADIENT * largest)
        for one in earlier.origins.get(steps["candidate"].name_of(pair.candidate), ()):
            if one.parameter in earlier.unmoved:
                is_told[one.put] = False
        way, apart = (pair.content - then).reshape(-1), pair.difference.reshape(-1)
        stored = 2 * UNITS.get(pair.candidate.dtype, 0.0) * np.abs(pair.content.reshape(-1))
        more = np.maximum(np.abs(apart) - stored, 0.0)
        growths = [float(np.linalg.norm(one[is_told])) - float(np.linalg.norm(before)) for one in (apart, more)]
        yield Movement(pair.name, float(np.linalg.norm(way)), way[is_told], (apart - before)[is_told], *growths)


def _find_before(pair: LeafPair, candidate: TrueStep, earlier: EarlierStep) -> Array | None:
    """The reference's numbers before the last update, as the candidate holds them; None if some are not known."""
    found = pair.content.reshape(-1).copy()
    origins = earlier.origins.get(candidate.name_of(pair.candidate), ())
    for one in origins:
        numbers = earlier.parameters.get(one.parameter)
        if numbers is None or (one.take.size and numbers.size <= int(one.take.max())):
            return None
        found[one.put] = numbers.reshape(-1)[one.take]
    return found.reshape(pair.content.shape) if origins else None


def _find_followed(pair: LeafPair, floor: float) -> Array:
    """Where the candidate has a gradient that is not rounding: of joined parameters a part may not."""
    gradient = pair.candidate.gradient
    if gradient is None or gradient.size != pair.content.size:
        return np.ones(pair.content.size, dtype=bool)
    return np.asarray(np.abs(gradient.reshape(-1)) > floor)


def _density(value: TrueValue) -> float:
    """The size of one element of its gradient."""
    if value.gradient is None or not value.gradient.size:
        return 0.0
    return float(np.linalg.norm(value.gradient) / np.sqrt(value.gradient.size))
