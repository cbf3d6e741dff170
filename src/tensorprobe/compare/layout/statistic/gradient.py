"""Whether the gradients that ranks end up with are those of the reference, as far as statistics tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensorprobe.compare.layout.observable import Kind
from tensorprobe.compare.layout.pool import Ranks
from tensorprobe.compare.layout.statistic.step import SummaryRanks
from tensorprobe.compare.layout.statistic.summary import Summary, join
from tensorprobe.compare.layout.statistic.weight import SummaryHeld, find_distinct, find_wholes

_ZERO = 1e-6
"""A gradient that is smaller than this part of the largest one is rounding."""


@dataclass(frozen=True)
class SummaryGradient:
    """That of one parameter, on all ranks that have it."""

    name: str
    kind: Kind
    ranks: Ranks
    factor: float | None = None


class SummaryGradients:
    """Holds the gradients of the candidate against those of the reference."""

    def __init__(self, reference: SummaryRanks, candidate: SummaryRanks, tolerance: float) -> None:
        self._expected = find_wholes({rank: one.gradients for rank, one in reference.items()})
        self._unclear = set(_iter_shared(reference))
        self._candidate = candidate
        self._tolerance = tolerance
        self._floor = _ZERO * max((one.norm for one in self._expected.values()), default=0.0)

    def judge(self, held: Sequence[SummaryHeld]) -> Iterator[SummaryGradient]:
        """Of all parameters that the reference has a gradient of."""
        for name in dict.fromkeys(one.name for one in held):
            holders = [one for one in held if one.name == name]
            expected = self._expected.get(holders[0].weight or "")
            if holders[0].weight in self._unclear:
                yield SummaryGradient(name, "unknown", tuple(one.rank for one in holders))
            elif expected is not None:
                yield self._judge(name, tuple(one.rank for one in holders), expected)

    def _judge(self, name: str, ranks: Ranks, expected: Summary) -> SummaryGradient:
        found = {rank: one for rank in ranks if (one := self._candidate[rank].gradients.get(name)) is not None}
        if len(found) < len(ranks):
            is_zero = expected.norm <= self._floor
            return SummaryGradient(name, "same" if is_zero else "unknown", ranks)
        distinct = find_distinct(list(found.values()), self._tolerance)
        if self._is_like(distinct, expected) or expected.norm + sum(one.norm for one in distinct) <= self._floor:
            return SummaryGradient(name, "same", ranks)
        if len(distinct) > 1 and any(expected.is_sum(distinct, self._tolerance, by) for by in (1, len(distinct))):
            sharers = tuple(next(rank for rank, one in found.items() if one.mark == part.mark) for part in distinct)
            is_used = all(self._is_reduced(rank, found[rank], expected) for rank in ranks)
            return SummaryGradient(name, "same" if is_used else "share", sharers)
        factor = (distinct[0] if len(distinct) == 1 else join(distinct)).find_factor(expected, self._tolerance)
        wrong = tuple(rank for rank, one in found.items() if not one.is_like(expected, self._tolerance))
        return SummaryGradient(name, "other" if factor is None else "factor", wrong, factor)

    def _is_like(self, parts: Sequence[Summary], expected: Summary) -> bool:
        return (parts[0] if len(parts) == 1 else join(parts)).is_like(expected, self._tolerance)

    def _is_reduced(self, rank: int, share: Summary, expected: Summary) -> bool:
        """Does a collective that takes it give parts of what it should be, as where each rank updates a part?"""
        steps = {number: one.rank for number, one in self._candidate.items()}
        for name, communication in steps[rank].communications.items():
            call = steps[rank].step.calls[name]
            if all(self._candidate[rank].summaries[number].mark != share.mark for number in call.inputs.values()):
                continue
            for slot in call.outputs:
                places = [self._candidate[member].at.get((name, slot)) for member in communication.ranks]
                parts = [
                    self._candidate[member].summaries[number]
                    for member, number in zip(communication.ranks, places, strict=True)
                    if number is not None
                ]
                joined = join(find_distinct(parts)) if parts else None
                factor = None if joined is None else joined.find_factor(expected, self._tolerance)
                if factor is not None and min(abs(factor - 1), abs(factor - len(parts))) <= self._tolerance * factor:
                    return True
        return False


def _iter_shared(reference: SummaryRanks) -> Iterator[str]:
    """Parameters that ranks of the reference have in common, and of whose gradient each has a share, not a part."""
    for name in dict.fromkeys(name for one in reference.values() for name in one.gradients):
        weights = [one.parameters[name] for one in reference.values() if name in one.parameters]
        gradients = [one.gradients[name] for one in reference.values() if name in one.gradients]
        is_one = len(find_distinct(weights)) == 1 and weights[0].count == gradients[0].count
        if is_one and len(find_distinct(gradients)) > 1:
            yield name
