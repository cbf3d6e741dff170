"""Steps of a sum that the other run takes in another order: `(a + b) + c` against `a + (b + c)`.

Neither run has the other's first step, and with a fault in `c` not its result either. A sum is known by its terms:
those with the same factors in a sum of the other run are no difference. What is a sum of what shows in the numbers,
whatever the calls are named.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tensorprobe.compare.truth.same_array import is_same
from tensorprobe.compare.truth.value_index import Counterparts, other_side
from tensorprobe.replay.true_step import Array, TrueCall, TrueValue

_MAX_TERMS = 64
_MAX_SUMS = 32
"""So many sums that a value is in are looked at."""
_CLOSE = 1e-9
Terms = dict[int, float]
"""The factor of each term, by the number of its value."""


class PartialSums:
    """Both steps, and what is a step of which sum."""

    def __init__(self, counterparts: Counterparts) -> None:
        self._counterparts = counterparts
        self._steps = counterparts.steps
        self._parts: dict[tuple[str, int], Terms] = {}

    def has(self, side: str, call: TrueCall) -> bool:
        """Has the other run a sum with all terms of this one?"""
        values = [self._steps[side].values[number] for number in call.outputs.values()]
        if len(values) != 1 or not self._is_only_added(side, values[0]):
            return False
        own = self._find_terms(side, values[0])
        step, other = self._steps[side], other_side(side)
        if len(own) < 2 or not all(self._counterparts.exists(side, step.values[number]) for number in own):
            return False
        partners = {number: self._counterparts.of(side, step.values[number]) for number in own}
        wholes = self._climb(side, values[0])
        totals = [self._find_terms(side, whole) for whole in wholes]
        for partner in next(iter(partners.values())):
            for whole in self._climb(other, partner):
                terms = self._find_terms(other, whole)
                if any(_fits(total, terms, partners) for total in totals):
                    return True
        return False

    def _is_only_added(self, side: str, value: TrueValue) -> bool:
        """Is it used for nothing else?"""
        users = self._steps[side].users.get(value.number, [])
        return bool(users) and all(self._find_sum_of(side, user, value) is not None for user in users)

    def _climb(self, side: str, value: TrueValue) -> Iterator[TrueValue]:
        """The sums that it is a term of, the smallest first."""
        waiting, count = [value], 0
        while waiting and count < _MAX_SUMS:
            one = waiting.pop(0)
            for user in self._steps[side].users.get(one.number, []):
                total = self._find_sum_of(side, user, one)
                if total is not None:
                    count += 1
                    waiting.append(total)
                    yield total

    def _find_sum_of(self, side: str, user: TrueCall, value: TrueValue) -> TrueValue | None:
        """What this call, or the next one that takes its result, adds up of this value and others."""
        step = self._steps[side]
        results = [step.values[number] for number in user.outputs.values()]
        if len(results) != 1:
            return None
        if value.number in self._find_parts(side, results[0]):
            return results[0]
        for after in step.users.get(results[0].number, []):  # stacked, and then added up
            totals = [step.values[number] for number in after.outputs.values()]
            if len(totals) == 1 and value.number in self._find_parts(side, totals[0]):
                return totals[0]
        return None

    def _find_terms(self, side: str, value: TrueValue) -> Terms:
        """What it is a sum of, down to what the other run has, or what is no sum."""
        found: Terms = {}
        waiting = [(value, 1.0)]
        while waiting and len(found) < _MAX_TERMS:
            one, factor = waiting.pop()
            is_atom = one is not value and self._counterparts.exists(side, one)
            parts = {} if is_atom else self._find_parts(side, one)
            if not parts:
                found[one.number] = found.get(one.number, 0.0) + factor
            waiting += [(self._steps[side].values[number], factor * share) for number, share in parts.items()]
        return found

    def _find_parts(self, side: str, value: TrueValue) -> Terms:
        found = self._parts.get((side, value.number))
        if found is None:
            found = self._parts[side, value.number] = self._look_for_parts(side, value)
        return found

    def _look_for_parts(self, side: str, value: TrueValue) -> Terms:
        """What its maker adds up, as the numbers show; empty where it does something else."""
        step = self._steps[side]
        maker = step.maker(value)
        if maker is None or value.array.dtype.kind != "f":
            return {}
        given = _floating(step.values[number] for number in maker.inputs.values())
        if len(given) == 1 and (before := step.maker(given[0])) is not None and given[0].array.size > value.array.size:
            given = _floating(step.values[number] for number in before.inputs.values())  # stacked first
            is_stacked = all(one.array.size == value.array.size for one in given)
            total = np.sum([one.array.reshape(value.array.shape) for one in given], 0) if is_stacked else None
            return dict.fromkeys((one.number for one in given), 1.0) if _is_equal(total, value.array) else {}
        if len(given) == 1:
            factor = _find_factor(given[0].array, value.array)
            return {} if factor is None else {given[0].number: factor}
        return _find_signs(given, value.array) if len(given) == 2 else {}


def _floating(values: Iterator[TrueValue]) -> list[TrueValue]:
    return [one for one in {one.number: one for one in values}.values() if one.array.dtype.kind == "f"]


def _find_factor(given: Array, made: Array) -> float | None:
    """The one number that all were multiplied by."""
    size = float(np.linalg.norm(given))
    if given.size != made.size or not 0 < size < np.inf:
        return None
    with np.errstate(invalid="ignore", over="ignore"):  # of a mask, infinities times zero
        factor = float(given.reshape(-1) @ made.reshape(-1)) / size**2
    return factor if factor and np.isfinite(factor) and _is_equal(factor * given.reshape(made.shape), made) else None


def _find_signs(given: list[TrueValue], made: Array) -> Terms:
    first, second = given
    if made.ndim != max(one.array.ndim for one in given):
        return {}
    for signs in ((1.0, 1.0), (1.0, -1.0), (-1.0, 1.0)):
        if _is_equal(_add(signs, first.array, second.array), made):
            return {first.number: signs[0], second.number: signs[1]}
    return {}


def _add(signs: tuple[float, float], first: Array, second: Array) -> Array | None:
    try:
        return np.asarray(signs[0] * first + signs[1] * second)
    except ValueError:  # shapes that do not go together
        return None


def _is_equal(total: Array | None, made: Array) -> bool:
    return total is not None and total.shape == made.shape and is_same(total, made)


def _fits(own: Terms, other: Terms, partners: dict[int, list[TrueValue]]) -> bool:
    """Has each of these terms the same factor in both sums?"""
    return all(
        any(
            abs(other.get(one.number, 0.0) - own.get(number, 0.0)) <= _CLOSE * abs(own.get(number, 0.0))
            for one in found
        )
        for number, found in partners.items()
    )
