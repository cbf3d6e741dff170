"""The dumps behind a comparison, opened again where they still are: for stacks and tensors, which it does not keep."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tensorprobe.compare.result import Comparison
from tensorprobe.errors import DumpError
from tensorprobe.run.saved_tensor import open_saved
from tensorprobe.store.reader import RankDump, open_dump
from tensorprobe.store.slot import TensorSlot

Array = np.ndarray[Any, Any]
SIDES = ("reference", "candidate")


@dataclass(frozen=True)
class Recorded:
    """Both dumps of a comparison; what is gone is empty."""

    comparison: Comparison

    def find_stack(self, side: str, place: int | None, name: str) -> tuple[str, ...]:
        """Where a call was made, innermost first."""
        rank = self.find_rank(side, place)
        return () if rank is None else rank.stack(name)

    def open_value(self, side: str, place: int, slot: TensorSlot) -> Array | None:
        """A saved tensor; None if it cannot be read."""
        rank = self.find_rank(side, place)
        return None if rank is None else open_saved(rank, slot)

    def find_rank(self, side: str, place: int | None) -> RankDump | None:
        if place is None:
            return None
        result = self.comparison.ranks[place]
        return self._ranks[side].get(result.reference_name if side == SIDES[0] else result.candidate_name)

    @cached_property
    def _ranks(self) -> dict[str, dict[str, RankDump]]:
        paths = zip(SIDES, (self.comparison.reference, self.comparison.candidate), strict=True)
        return {side: _open_ranks(path) for side, path in paths}


def _open_ranks(path: str) -> dict[str, RankDump]:
    try:
        return {rank.name: rank for rank in open_dump(path).ranks()}
    except DumpError:
        return {}
