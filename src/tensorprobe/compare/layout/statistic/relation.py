"""What a value of one rank is to the reference, as far as statistics tell: the same, a part, one of several that add up
to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from tensorprobe.compare.layout.part import WHOLE, Part
from tensorprobe.compare.layout.pool import Known, Ranks, find_groups
from tensorprobe.compare.layout.relation import Relation
from tensorprobe.compare.layout.statistic.step import Place, SummaryRank, SummaryRanks, kind_of
from tensorprobe.compare.layout.statistic.summary import Summary, join
from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.replay.true_step import TrueCall, TrueValue

_FINE = 1e-3
"""With less than that, statistics tell values from each other; else only those of one module are looked at."""
_RANDOM = ("rand", "normal", "bernoulli", "multinomial", "dropout")
PART = Part(((0, np.zeros(0, np.int64)),))
"""Some part: statistics do not say which."""


class SummaryRelations:
    """All values of the candidate, looked up when they are asked for."""

    def __init__(self, reference: SummaryRanks, candidate: SummaryRanks, tolerance: float) -> None:
        self._candidate = candidate
        self._groups = find_groups({rank: one.rank for rank, one in candidate.items()})
        self._tolerance = tolerance
        self._pool: dict[int, list[tuple[Summary, Known]]] = defaultdict(list)
        for summary, known in iter_known(reference):
            self._pool[summary.count].append((summary, known))
        self._found: dict[tuple[int, int], Relation | None] = {}
        self._counts = {
            kind: max(len(one.alike.get(kind, ())) for one in reference.values())
            for kind in {kind for one in reference.values() for kind in one.alike}
        }

    def of(self, rank: int, value: TrueValue) -> Relation | None:
        key = rank, value.number
        if key not in self._found:
            self._found[key] = self._find(rank, value)
        return self._found[key]

    def is_plain(self, rank: int, value: TrueValue) -> bool:
        """Also what is made of nothing: of two sizes, statistics do not tell whether it counts from the same number."""
        call = self._candidate[rank].rank.step.maker(value)
        is_made = call is None or bool(call.inputs) or is_random(call)
        return not is_made or self._candidate[rank].summaries[value.number].is_plain

    def _find(self, rank: int, value: TrueValue) -> Relation | None:
        call = self._candidate[rank].rank.step.maker(value)
        own = self._candidate[rank].summaries[value.number]
        whole = self._look_up(own, call)
        if whole is not None:
            return Relation(whole, WHOLE)
        place = self._candidate[rank].places[value.number]
        for group in ((rank,), *(group for group in self._groups if rank in group)):
            peers = list(self._iter_peers(group, place, call))
            distinct = list({one.mark: one for one in peers}.values())
            if len(distinct) < 2:
                continue
            joined = self._look_up(join(distinct), call)
            if joined is not None:
                return Relation(joined, PART)
            total = self._look_up_sum(distinct) if len(distinct) == len(peers) == len(group) else None
            if total is not None:
                return Relation(total, WHOLE, group)
        return None

    def _iter_peers(self, group: Ranks, place: Place, call: TrueCall | None) -> Iterator[Summary]:
        """The same value on all ranks of a group, and of all micro-batches: where each of them makes the calls that the
        reference makes for all of the batch."""
        for one in (self._candidate[rank] for rank in group if rank in self._candidate):
            for name in self._find_repeats(one, call) if call is not None else (place[0],):
                summary = one.find((name, place[1]))
                if summary is not None:
                    yield summary

    def _find_repeats(self, one: SummaryRank, call: TrueCall) -> Sequence[str]:
        names, period = one.alike.get(kind_of(call), []), self._counts.get(kind_of(call), 0)
        if call.name not in names or period == 0 or len(names) % period or len(names) == period:
            return (call.name,)
        return names[names.index(call.name) % period :: period]

    def _look_up(self, summary: Summary, call: TrueCall | None) -> Known | None:
        """The likely one first: made by the same, in the same module."""
        near = [known for other, known in self._pool[summary.count] if summary.is_like(other, self._tolerance)]
        if self._tolerance > _FINE and call is not None:
            near = [one for one in near if one.call is None or one.call.module_path == call.module_path]
        return min(near, key=lambda known: _unlike(known, call), default=None)

    def _look_up_sum(self, parts: Sequence[Summary]) -> Known | None:
        likely = (
            known for other, known in self._pool[parts[0].count] if known.call and other.is_sum(parts, self._tolerance)
        )
        return next(likely, None)


def is_random(call: TrueCall) -> bool:
    return any(word in call.op for word in _RANDOM)


def iter_known(reference: SummaryRanks) -> Iterator[tuple[Summary, Known]]:
    """All values of the reference, and what several of its ranks have together."""
    steps = {rank: one.rank for rank, one in reference.items()}
    for rank, one in reference.items():
        for value in one.rank.step.values:
            call = one.rank.step.maker(value)
            yield one.summaries[value.number], Known(value.array, (rank,), call, value.parameter or value.slot)
    for group in find_groups(steps) if len(steps) > 1 else ():
        for place in reference[group[0]].at:
            parts = [
                reference[rank].summaries[reference[rank].at[place]] for rank in group if place in reference[rank].at
            ]
            distinct = list({part.mark: part for part in parts}.values())
            if len(parts) == len(group) and len(distinct) > 1:
                first = reference[group[0]]
                value = first.rank.step.values[first.at[place]]
                yield join(distinct), Known(value.array, group, first.rank.step.maker(value), value.slot)


def _unlike(known: Known, call: TrueCall | None) -> tuple[bool, bool]:
    if known.call is None or call is None:
        return (known.call is not call, True)
    return (word_of(known.call) != word_of(call), known.call.module_path != call.module_path)
