"""From a call that computes something else, although all that goes in is in the reference, back to where it is given
something else than its partner: a value may be in the reference, and not in this place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensorprobe.compare.layout.part import locate
from tensorprobe.compare.layout.pool import Known
from tensorprobe.compare.layout.relation import Relation
from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.replay.rank_step import RankStep
from tensorprobe.replay.true_step import TrueCall, TrueValue

Given = tuple[str, TrueValue, Relation | None]
"""A place, what is there, and what part it is of what the reference has in this place."""


@dataclass(frozen=True)
class CallPair:
    """A call of a rank of the candidate, and the one of the reference that does the same."""

    call: TrueCall
    partner: TrueCall


class Descent:
    """Goes from pair to pair, through one rank of each side."""

    def __init__(self, candidate: RankStep, reference: RankStep, tolerance: float) -> None:
        self._candidate = candidate
        self._reference = reference
        self._tolerance = tolerance

    def find_departure(self, pair: CallPair) -> tuple[CallPair, list[Given]]:
        """The first pair, backwards, that is given parts of the same, or that other calls give something to."""
        earlier: CallPair | None = pair
        while earlier is not None:
            pair, given = earlier, list(self._iter_given(earlier))
            earlier = next(self._iter_earlier(pair, given), None)
        return pair, given

    def _iter_earlier(self, pair: CallPair, given: list[Given]) -> Iterator[CallPair]:
        """The calls that give it something else than its partner is given."""
        for slot, value, relation in given:
            if relation is None:
                expected = self._reference.step.values[pair.partner.inputs[slot]]
                makers = self._candidate.step.maker(value), self._reference.step.maker(expected)
                if makers[0] is not None and makers[1] is not None and word_of(makers[0]) == word_of(makers[1]):
                    yield CallPair(makers[0], makers[1])

    def _iter_given(self, pair: CallPair) -> Iterator[Given]:
        for slot, number in pair.call.inputs.items():
            if slot in pair.partner.inputs:
                value = self._candidate.step.values[number]
                expected = self._reference.step.values[pair.partner.inputs[slot]]
                part = locate(value.array, expected.array, self._tolerance)
                known = Known(
                    expected.array,
                    (self._reference.rank,),
                    self._reference.step.maker(expected),
                    expected.parameter or expected.slot,
                )
                yield slot, value, None if part is None else Relation(known, part)
