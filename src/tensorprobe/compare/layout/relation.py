"""What a value of one rank is to the reference: the same, a part, one of several that add up to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tensorprobe.compare.layout.part import Part, locate
from tensorprobe.compare.layout.pool import Known, Pool, Ranks, Steps, find_arrays, find_groups
from tensorprobe.compare.truth.same_array import is_plain, is_same
from tensorprobe.replay.true_step import Array, TrueValue

_MOST_TRIALS = 400
"""So many values of the reference are looked at for one of the candidate."""


@dataclass(frozen=True, eq=False)
class Relation:
    """Where a value is in the reference."""

    known: Known
    part: Part
    ranks: Ranks = ()
    """Of a sum: the ranks whose values add up to it."""

    @property
    def is_share(self) -> bool:
        return bool(self.ranks)


class Lookup(Protocol):
    """Says what a value of the candidate is to the reference."""

    def of(self, rank: int, value: TrueValue) -> Relation | None:
        """None where the reference has nothing that it is a part of."""

    def is_plain(self, rank: int, value: TrueValue) -> bool:
        """Has it no information of its own? Then it is everywhere."""


class Relations:
    """All values of the candidate, looked up when they are asked for."""

    def __init__(self, reference: Steps, candidate: Steps, tolerance: float) -> None:
        self._pool = Pool(reference)
        self._steps = candidate
        self._groups = find_groups(candidate)
        self._tolerance = tolerance
        self._found: dict[tuple[int, int], Relation | None] = {}
        self._plain: dict[tuple[int, int], bool] = {}

    def of(self, rank: int, value: TrueValue) -> Relation | None:
        """None where the reference has nothing that it is a part of."""
        key = rank, value.number
        if key not in self._found:
            self._found[key] = self._find(rank, value)
        return self._found[key]

    def is_plain(self, rank: int, value: TrueValue) -> bool:
        """Has it no information of its own? Then it is everywhere."""
        key = rank, value.number
        if key not in self._plain:
            self._plain[key] = is_plain(value.array)
        return self._plain[key]

    def _find(self, rank: int, value: TrueValue) -> Relation | None:
        call = self._steps[rank].step.maker(value)
        found = self._look_up(rank, value.array, value)
        if found is not None or call is None or not value.is_floating:
            return found
        slot = next((slot for slot, number in call.outputs.items() if number == value.number), None)
        for group in self._groups if slot is not None else ():
            arrays = find_arrays(group, self._steps, call.name, slot or "") if rank in group else None
            if arrays is not None and not all(is_same(arrays[0], other, self._tolerance) for other in arrays[1:]):
                total = self._look_up(rank, np.sum(arrays, axis=0), value)
                if total is not None:
                    return Relation(total.known, total.part, group)
        return None

    def _look_up(self, rank: int, array: Array, value: TrueValue) -> Relation | None:
        call = self._steps[rank].step.maker(value)
        for number, known in enumerate(self._pool.find(array, call, self._tolerance)):
            part = locate(array, known.array, self._tolerance)
            if part is not None:
                return Relation(known, part)
            if number > _MOST_TRIALS:
                break
        return None
