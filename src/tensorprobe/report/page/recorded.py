"""The dumps behind a comparison, opened again where they still are: for stacks and tensors, which it does not keep."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tensorprobe.compare.result import Comparison
from tensorprobe.errors import DumpError
from tensorprobe.store.reader import RankDump, open_dump
from tensorprobe.store.slot import TensorSlot
from tensorprobe.store.tensor_file import open_tensor

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
        if rank is None or slot.data_name is None:
            return None
        try:
            return open_tensor(rank.tensor_path(slot.data_name), slot.dtype)
        except DumpError:
            return None  # the row of this pair says why

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
