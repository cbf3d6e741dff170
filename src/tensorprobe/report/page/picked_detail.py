"""Which pairs are drawn in a page, and their histograms: the verdict's, those of the sources, and the worst ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tensorprobe.compare.row import Row
from tensorprobe.report.page.recorded import Array, Recorded

MAX_DETAILS = 40
_MAX_ELEMENTS = 1 << 26
"""Of all tensors that are drawn: a page must not take longer than the comparison."""


def describe_rows(
    rows: Sequence[Row], places: Sequence[int], chosen: Iterable[int], recorded: Recorded
) -> dict[str, Any]:
    """The details of the first so many of the chosen rows that have tensors, by the number of the row."""
    from tensorprobe.report.page.detail import describe_pair  # only where tensors are at hand

    found: dict[str, Any] = {}
    left = _MAX_ELEMENTS
    for number in chosen:
        pair = _open_pair(rows[number], places[number], recorded)
        if len(found) == MAX_DETAILS:
            break
        if pair is not None and max(one.size for one in pair) <= left:
            left -= max(one.size for one in pair)
            found[str(number)] = describe_pair(*pair)
    return found


def choose_rows(rows: Sequence[Row], first: Iterable[int]) -> Iterator[int]:
    """Those that come first, then those that are farthest beyond their tolerance."""
    told = dict.fromkeys(number for number in first if _is_saved(rows[number]))
    yield from told
    differing = [
        number
        for number, row in enumerate(rows)
        if row.status in ("different", "close") and number not in told and _is_saved(row)
    ]
    yield from sorted(differing, key=lambda number: -_excess(rows[number]))[:MAX_DETAILS]


def _is_saved(row: Row) -> bool:
    return row.reference_data_name is not None and row.candidate_data_name is not None


def _excess(row: Row) -> float:
    error = float("inf") if row.error is None or row.error != row.error else row.error
    return error / row.tolerance if row.tolerance else error


def _open_pair(row: Row, place: int, recorded: Recorded) -> tuple[Array, Array] | None:
    if row.reference_data_name is None or row.candidate_data_name is None:
        return None
    reference = recorded.open_value("reference", place, row.reference_data_name, row.reference_dtype)
    candidate = recorded.open_value("candidate", place, row.candidate_data_name, row.candidate_dtype)
    return None if reference is None or candidate is None else (reference, candidate)
