"""Values that are the same in both runs, but for a factor: scores that one run scales before a product, and the other
after it. Or not as it should: then the factor says what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isclose, prod

import numpy as np

from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.compare.truth.difference import Difference
from tensorprobe.compare.truth.same_array import is_laid_out, is_same
from tensorprobe.compare.truth.value_index import Counterparts, other_side
from tensorprobe.replay.true_step import TrueCall, TrueValue

_LEAST = 8
"""Of fewer numbers, each is a multiple of others by chance."""
_CLOSE = 1e-6


class Proportional:
    """Both steps, and which values of one are a multiple of which of the other."""

    def __init__(self, counterparts: Counterparts) -> None:
        self.steps = counterparts.steps
        self._counterparts = counterparts
        self._by_size: dict[tuple[str, int], list[TrueValue]] = {}
        for side, step in self.steps.items():
            for value in step.values:
                if self._is_telling(side, value):
                    self._by_size.setdefault((side, value.array.size), []).append(value)
        self._found: dict[tuple[str, int], list[tuple[TrueValue, float]]] = {}

    def of(self, side: str, value: TrueValue) -> list[TrueValue]:
        """The values of the other run that have this content, or a multiple of it. `side` is whose value it is."""
        return self._counterparts.of(side, value) or [other for other, _ in self.multiples(side, value)]

    def exists(self, side: str, value: TrueValue) -> bool:
        return self._counterparts.exists(side, value) or bool(self.multiples(side, value))

    def multiples(self, side: str, value: TrueValue) -> list[tuple[TrueValue, float]]:
        """The values of the other run that this is a multiple of, each with the factor."""
        found = self._found.get((side, value.number))
        if found is None:
            is_asked = self._is_telling(side, value) and not self._counterparts.exists(side, value)
            found = self._found[side, value.number] = list(self._find(side, value)) if is_asked else []
        return found

    def _find(self, side: str, value: TrueValue) -> Iterator[tuple[TrueValue, float]]:
        other, tolerance = other_side(side), self._counterparts.tolerance
        own = self._counterparts.moments(side, value)
        for one in self._by_size.get((other, value.array.size), []):
            moments = self._counterparts.moments(other, one)
            for factor in (own.norm / moments.norm, -own.norm / moments.norm):
                if not own.is_near(moments.times(factor), tolerance):
                    continue
                moved = one.array * factor
                if is_same(value.array, moved, tolerance) or is_laid_out(value.array, moved, tolerance):
                    yield one, factor
                    break

    def _is_telling(self, side: str, value: TrueValue) -> bool:
        return (
            value.array.dtype.kind == "f"
            and value.array.size >= _LEAST
            and not self._counterparts.is_plain(side, value)
            and not np.isnan(value.array).any()
        )

    def explain(self, one: Difference) -> Difference | None:
        """If both calls take the same but for a factor: where that comes from, in both runs. Calls that do different
        things may take what both runs have and its negative, and nothing is wrong with that."""
        if one.reference is None or one.candidate is None:
            return None
        taken = set(one.reference.inputs.values())
        is_alike = word_of(one.reference) == word_of(one.candidate)
        for number in one.candidate.inputs.values():
            value = self.steps["candidate"].values[number]
            for other, factor in self.multiples("candidate", value):
                if other.number in taken and (is_alike or not self._counterparts.exists("reference", other)):
                    reference, _ = self._find_origin("reference", other, 1 / factor)
                    candidate, factor = self._find_origin("candidate", value, factor)
                    because = f"its result is {factor:.6g} times that of the reference"
                    return Difference("source", reference, candidate, because, is_clear=True)
        return None

    def find_scaling(self, one: Difference, beginnings: Mapping[str, Sequence[TrueCall]]) -> Difference | None:
        """The call that only one run makes, of those where what differs begins, and that multiplies what both have by
        the factor of this difference: linear calls carry it on, and others may show it as its square."""
        factor = self._find_factor(one)
        for side in ("candidate", "reference") if factor is not None else ():
            for call in (one for one in beginnings[side] if one.inside is None):
                own = self._find_own_factor(side, call)
                powers = [] if own is None else [own**power for power in (1, 2, 0.5, -1, -2, -0.5) if own > 0]
                if factor is not None and any(isclose(factor, power, rel_tol=_CLOSE) for power in powers):
                    because = f"it multiplies by {own:.6g}, but the {other_side(side)} does not"
                    calls = (None, call) if side == "candidate" else (call, None)
                    return Difference("source", calls[0], calls[1], because, is_clear=True)
        return None

    def _find_factor(self, one: Difference) -> float | None:
        """Of what the candidate's call gives, to what the reference's does."""
        if one.reference is None or one.candidate is None:
            return None
        given = {*one.reference.inputs.values(), *one.reference.outputs.values()}
        for number in (*one.candidate.outputs.values(), *one.candidate.inputs.values()):
            for other, factor in self.multiples("candidate", self.steps["candidate"].values[number]):
                if other.number in given:
                    return factor
        return None

    def _find_own_factor(self, side: str, call: TrueCall) -> float | None:
        """By what it multiplies the one value that it takes, and the other run has, too."""
        values = self.steps[side].values
        given = [
            values[number] for number in dict.fromkeys(call.inputs.values()) if values[number].array.size >= _LEAST
        ]
        made = [values[number] for number in call.outputs.values()]
        if len(given) != 1 or len(made) != 1 or given[0].array.shape != made[0].array.shape:
            return None
        norm = float(np.linalg.norm(given[0].array))
        if not self._is_telling(side, made[0]) or not self._counterparts.exists(side, given[0]) or not norm:
            return None
        factor = float(np.linalg.norm(made[0].array)) / norm
        is_multiple = is_same(made[0].array, given[0].array * factor, self._counterparts.tolerance)
        return factor if is_multiple and not isclose(factor, 1.0, rel_tol=_CLOSE) else None

    def _find_origin(self, side: str, value: TrueValue, factor: float) -> tuple[TrueCall | None, float]:
        """The first call on the way to a value whose result is wrong by this factor, or by a part of it: of a product
        each side may have been multiplied. With the factor of its result."""
        step, call = self.steps[side], None
        while (maker := step.maker(value)) is not None and (call is None or maker.position < call.position):
            call = maker
            given = [step.values[number] for number in maker.inputs.values()]
            before = next((one for one in given if self._has_factor(side, one, factor)), None)
            if before is None:
                parts = [(one, found) for one in given for _, found in self.multiples(side, one)[:1]]
                if not parts or not isclose(prod(found for _, found in parts), factor, rel_tol=_CLOSE):
                    break
                before, factor = min(parts, key=lambda part: part[0].number)
            value = before
        return call, factor

    def _has_factor(self, side: str, value: TrueValue, factor: float) -> bool:
        return any(isclose(found, factor, rel_tol=_CLOSE) for _, found in self.multiples(side, value))
