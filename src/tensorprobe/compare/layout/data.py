"""The data of a step: which part of the reference's each rank was given, and whether all of it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tensorprobe.compare.layout.part import Part, locate
from tensorprobe.compare.layout.pool import Ranks, Steps
from tensorprobe.compare.truth.same_array import is_plain
from tensorprobe.replay.true_step import Array, TrueValue


@dataclass(frozen=True, eq=False)
class Untaken:
    """Data of the reference that no rank of the candidate was given."""

    leaf: TrueValue
    missing: Part
    doubled: Part
    ranks: Ranks
    """Those that were given the same part."""


def find_untaken(reference: Steps, candidate: Steps) -> Iterator[Untaken]:
    """Data that is cut into parts, but not all of which is there."""
    for one in reference.values():
        for leaf in one.step.leaves:
            if leaf.parameter is None and leaf.array.ndim and not is_plain(leaf.array) and one.step.leads_to_loss(leaf):
                found = _find_gap(leaf, candidate)
                if found is not None:
                    yield found


def _find_gap(leaf: TrueValue, candidate: Steps) -> Untaken | None:
    parts = list(_iter_parts(leaf.array, candidate))
    if {rank for rank, _ in parts} != set(candidate):  # a few small numbers are anywhere, and tell nothing
        return None
    if not parts or any(part.is_whole for _, part in parts):
        return None
    dims = {dim for _, part in parts for dim, _ in part.places}
    if len(dims) != 1:
        return None
    (dim,) = dims
    taken = np.concatenate([part.places[0][1] for _, part in parts])
    missing = np.setdiff1d(np.arange(leaf.array.shape[dim]), taken)
    if not len(missing):
        return None
    for _, part in parts:
        twins = [other for other, own in parts if np.array_equal(own.places[0][1], part.places[0][1])]
        if len(set(twins)) > 1:
            return Untaken(leaf, Part(((dim, missing),)), part, tuple(dict.fromkeys(twins)))
    return None


def _iter_parts(whole: Array, candidate: Steps) -> Iterator[tuple[int, Part]]:
    for rank, one in candidate.items():
        for leaf in one.step.leaves:
            if leaf.parameter is None and leaf.array.dtype == whole.dtype and not is_plain(leaf.array):
                part = locate(leaf.array, whole, 1e-12) if leaf.array.ndim == whole.ndim else None
                if part is not None:
                    yield rank, part
