"""Two sequences, aligned in order at the least cost: what is left out, put in or replaced costs, what is equal does
not.

numpy computes a row of the table at once, so that thousands of entries against thousands take seconds.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from tensorprobe.errors import UsageError

IndexPair = tuple[int | None, int | None]
"""Positions in the reference and in the candidate; None: it has no partner."""

_MAX_CELLS = 400_000_000
_PAIR, _DELETE, _INSERT = 0, 1, 2


@dataclass(frozen=True)
class EditCosts:
    """What one edit costs, from the reference to the candidate."""

    delete: float = 1
    insert: float = 1
    replace: float = 5

    def __post_init__(self) -> None:
        for name in ("delete", "insert", "replace"):
            cost = getattr(self, name)
            if isinstance(cost, bool) or not isinstance(cost, Real) or not 0 <= float(cost) < math.inf:
                raise UsageError(f"the cost to {name} is {cost!r}. Give a number that is not negative.")


def align_sequences(
    reference: Sequence[Hashable | None], candidate: Sequence[Hashable | None], costs: EditCosts | None = None
) -> list[IndexPair]:
    """Every position of both sides once, in order. None is equal to nothing."""
    start = _count_equal(reference, candidate)
    end = _count_equal(reference[start:][::-1], candidate[start:][::-1])
    inner = reference[start : len(reference) - end], candidate[start : len(candidate) - end]
    pairs: list[IndexPair] = [(index, index) for index in range(start)]
    for first, second in _align(*inner, costs or EditCosts()):
        pairs.append((None if first is None else first + start, None if second is None else second + start))
    pairs += [(len(reference) - index, len(candidate) - index) for index in range(end, 0, -1)]
    return pairs


def _count_equal(reference: Sequence[Any], candidate: Sequence[Any]) -> int:
    """How many are equal from the start on: an alignment of least cost pairs these."""
    for index, (first, second) in enumerate(zip(reference, candidate, strict=False)):
        if first is None or first != second:
            return index
    return min(len(reference), len(candidate))


def _align(reference: Sequence[Any], candidate: Sequence[Any], costs: EditCosts) -> list[IndexPair]:
    if len(reference) * len(candidate) > _MAX_CELLS:
        raise UsageError(
            f"{len(reference):,} files against {len(candidate):,} are too many to be aligned by their shapes. "
            "Compare them folder by folder, or pair them by name or by number."
        )
    moves = _find_moves(*_number(reference, candidate), costs)
    pairs: list[IndexPair] = []
    row, column = len(reference), len(candidate)
    while row or column:
        move = int(moves[row, column])  # of numpy's kind it would make numpy's kind of positions
        row -= move != _INSERT
        column -= move != _DELETE
        pairs.append((None if move == _INSERT else row, None if move == _DELETE else column))
    return pairs[::-1]


def _number(reference: Sequence[Any], candidate: Sequence[Any]) -> tuple[Any, Any]:
    """Equal numbers for what is equal."""
    known: dict[Any, int] = {}
    first = [-1 if value is None else known.setdefault(value, len(known)) for value in reference]
    second = [-2 if value is None else known.setdefault(value, len(known)) for value in candidate]
    return np.array(first, np.int64), np.array(second, np.int64)


def _find_moves(reference: Any, candidate: Any, costs: EditCosts) -> Any:
    """The last edit of the cheapest way to every cell."""
    delete, insert, replace = float(costs.delete), float(costs.insert), float(costs.replace)
    inserted = np.arange(len(candidate) + 1) * insert
    slack = 1e-9 * (delete + insert + replace)
    moves = np.empty((len(reference) + 1, len(candidate) + 1), np.uint8)
    moves[0] = _INSERT
    above = inserted
    for index, value in enumerate(reference):
        paired = above[:-1] + np.where(candidate == value, 0.0, replace)
        deleted = above + delete
        here = deleted.copy()
        np.minimum(here[1:], paired, out=here[1:])
        # Every cell may also be reached from a cell to its left, by inserting all between them.
        cheapest = np.minimum.accumulate(here - inserted) + inserted
        moves[index + 1] = _DELETE
        row, bound = moves[index + 1, 1:], cheapest[1:] + slack
        row[cheapest[:-1] + insert <= bound] = _INSERT
        row[paired <= bound] = _PAIR
        above = cheapest
    return moves
