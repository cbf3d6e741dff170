"""What two layouts of one program are for: the loss, and what becomes of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tensorprobe.compare.layout.pool import Ranks, Steps, find_groups
from tensorprobe.compare.layout.weight import Held, Holdings
from tensorprobe.compare.truth.same_array import is_same
from tensorprobe.replay.true_step import Array

ZERO = 1e-11
"""A gradient that is smaller than this part of the largest one of the run is zero in exact arithmetic."""
Kind = Literal["same", "share", "factor", "other", "none", "unknown"]


@dataclass(frozen=True)
class Loss:
    """The loss of one side: of each rank that has one, the sum over its backward passes."""

    totals: Mapping[int, float]

    @property
    def readings(self) -> dict[str, float]:
        """What may be meant by it."""
        numbers = list(self.totals.values())
        if not numbers:
            return {}
        found = {"the mean over ranks": float(np.mean(numbers)), "the sum over ranks": float(np.sum(numbers))}
        is_one = all(abs(number - numbers[0]) <= 1e-12 * abs(numbers[0]) for number in numbers)
        return {"the same on all ranks": numbers[0], **found} if is_one else found


def read_loss(steps: Steps) -> Loss:
    """Ranks without one, the first stages of a pipeline, have none."""
    totals = {}
    for rank, one in steps.items():
        roots = [value for value in one.step.roots if value.array.size == 1 and value.is_floating]
        if roots:
            totals[rank] = float(sum(value.array.item() for value in roots))
    return Loss(totals)


def match_loss(reference: Loss, candidate: Loss, tolerance: float) -> tuple[float, float, str] | None:
    """Both losses, and how that of the candidate is to be read; None where they are not the same."""
    for expected in reference.readings.values():
        for words, found in candidate.readings.items():
            if abs(found - expected) <= tolerance * max(abs(found), abs(expected)):
                return expected, found, words
    return None


@dataclass(frozen=True, eq=False)
class GradientMatch:
    """What one rank ends up with for its part of a weight."""

    held: Held
    kind: Kind
    error: float
    factor: float | None = None
    ranks: Ranks = ()
    """Whose gradients add up to what each of them should have."""

    @property
    def is_same(self) -> bool:
        return self.kind == "same"


class GradientJudge:
    """Holds the gradients of the candidate against those of the reference."""

    def __init__(self, holdings: Holdings, candidate: Steps, tolerance: float) -> None:
        self._holdings = holdings
        self._steps = candidate
        self._groups = find_groups(candidate)
        self._tolerance = tolerance
        norms = [float(np.linalg.norm(one.gradient)) for one in holdings.weights if one.gradient is not None]
        self._floor = ZERO * max(norms, default=0.0)

    def judge(self) -> list[GradientMatch]:
        return [self._judge(one) for one in self._holdings.held]

    def _judge(self, held: Held) -> GradientMatch:
        expected, found = held.expected, held.gradient
        if self._is_updated_alike(held):
            return GradientMatch(held, "same", 0.0)
        if expected is None or found is None:
            present = expected if expected is not None else found
            is_zero = present is None or float(np.linalg.norm(present)) <= self._floor
            if not is_zero and found is None and self._is_untold(held.rank):
                return GradientMatch(held, "unknown", 0.0)
            return GradientMatch(held, "same" if is_zero else "none", 0.0 if is_zero else 1.0)
        error = self._distance(found, expected)
        if error <= self._tolerance:
            return GradientMatch(held, "same", error)
        for ranks, total in self._iter_totals(held, found):
            if min(self._distance(total, expected), self._distance(total / len(ranks), expected)) <= self._tolerance:
                is_elsewhere = all(self._has_elsewhere(rank, held, expected) for rank in ranks)
                return GradientMatch(held, "same" if is_elsewhere else "share", error, ranks=ranks)
        factor = self._find_factor(found, expected)
        return GradientMatch(held, "factor" if factor is not None else "other", error, factor)

    def _is_untold(self, rank: int) -> bool:
        """May it have a gradient of which nothing is known? Those of FSDP2 are in a dump of level mix only; others may
        come about in a way that cannot be executed again."""
        coverage = self._steps[rank].step.coverage
        return not self._steps[rank].gradients or bool(coverage.gaps or coverage.remarks)

    def _is_updated_alike(self, held: Held) -> bool:
        expected, found = held.expected_update, held.updated
        return expected is not None and found is not None and is_same(found, expected, self._tolerance)

    def _iter_totals(self, held: Held, own: Array) -> Iterator[tuple[Ranks, Array]]:
        """What the gradients of this name, on ranks that do something together, add up to; not where all have one."""
        for group in self._groups:
            if held.rank in group:
                found = [self._steps[rank].gradients.get(held.name) for rank in group]
                known = [array for array in found if array is not None and array.shape == own.shape]
                is_one = all(is_same(known[0], other, self._tolerance) for other in known[1:])
                if len(known) == len(group) and not is_one:
                    yield group, np.sum(known, axis=0)

    def _has_elsewhere(self, rank: int, held: Held, expected: Array) -> bool:
        """Is what it should be, or this rank's share of that, in another tensor, as where each rank updates a part?"""
        flat = expected.reshape(-1)
        for value in self._steps[rank].step.values:
            array = value.array
            if value.is_leaf or array.dtype.kind != "f" or array.size < 2 or flat.size % array.size:
                continue
            pieces = flat.reshape(-1, array.size)
            if any(self._distance(array.reshape(-1), piece) <= self._tolerance for piece in pieces):
                return True
        return False

    def _find_factor(self, found: Array, expected: Array) -> float | None:
        square = float(np.vdot(expected, expected).real)
        factor = float(np.vdot(expected, found).real) / square if square else 0.0
        return factor if factor and self._distance(found, factor * expected) <= self._tolerance else None

    def _distance(self, first: Array, second: Array) -> float:
        if first.size != second.size:
            return 1.0
        first, second = first.reshape(-1), second.reshape(-1)
        difference = float(np.linalg.norm(np.nan_to_num(first - second)))
        if difference <= self._floor:
            return 0.0
        scale = max(float(np.linalg.norm(first)), float(np.linalg.norm(second)))
        return difference / scale if scale else 0.0


def list_ranks(ranks: Sequence[int]) -> str:
    """
    >>> list_ranks([3]), list_ranks([0, 1, 2])
    ('rank 3', 'ranks 0, 1, 2')
    """
    shown = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
