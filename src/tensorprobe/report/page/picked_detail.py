"""Which pairs are drawn in a page, and their histograms: the verdict's, those of the sources, and the worst ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tensorprobe.compare.result import ValuePair
from tensorprobe.report.page.call_table import CallTable
from tensorprobe.report.page.recorded import Array, Recorded
from tensorprobe.store.slot import Slot, TensorSlot

MAX_DETAILS = 40
_MAX_ELEMENTS = 1 << 26
"""Of all tensors that are drawn: a page must not take longer than the comparison."""


class SavedPair(NamedTuple):
    """Two tensors with files, and the number of their row."""

    row: int
    place: int
    reference: TensorSlot
    candidate: TensorSlot
    value: ValuePair


def describe_details(table: CallTable, named: Iterable[int | None], recorded: Recorded) -> dict[str, Any]:
    """The details of at most so many pairs, by the number of the row: those of the named calls first."""
    from tensorprobe.report.page.detail import describe_pair  # numpy's work: only where there are tensors

    found: dict[str, Any] = {}
    left = _MAX_ELEMENTS
    for saved in choose_pairs(table, named):
        pair = _open_pair(saved, recorded)
        if len(found) == MAX_DETAILS:
            break
        if pair is not None and max(one.size for one in pair) <= left:
            left -= max(one.size for one in pair)
            found[str(saved.row)] = describe_pair(*pair)
    return found


def choose_pairs(table: CallTable, named: Iterable[int | None]) -> list[SavedPair]:
    """Those of the named calls, then those that are farthest beyond their tolerance."""
    first = [saved for call in dict.fromkeys(named) if call is not None for saved in _iter_saved(table, [call])]
    told = {saved.row for saved in first}
    others = [
        saved
        for saved in _iter_saved(table, range(len(table.entries)))
        if saved.value.status in ("different", "close") and saved.row not in told
    ]
    return [*first, *sorted(others, key=lambda saved: -_excess(saved.value))]


def _iter_saved(table: CallTable, calls: Iterable[int]) -> Iterator[SavedPair]:
    for call in calls:
        place, pair = table.entries[call]
        for row, value in enumerate(pair.values, table.first_rows[call]):
            reference, candidate = _find_saved(value.reference), _find_saved(value.candidate)
            if reference is not None and candidate is not None:
                yield SavedPair(row, place, reference, candidate, value)


def _find_saved(slot: Slot | None) -> TensorSlot | None:
    return slot if isinstance(slot, TensorSlot) and slot.data_name is not None else None


def _excess(value: ValuePair) -> float:
    error = float("inf") if value.error is None or value.error != value.error else value.error
    return error / value.tolerance if value.tolerance else error


def _open_pair(saved: SavedPair, recorded: Recorded) -> tuple[Array, Array] | None:
    reference = recorded.open_value("reference", saved.place, saved.reference)
    candidate = recorded.open_value("candidate", saved.place, saved.candidate)
    return None if reference is None or candidate is None else (reference, candidate)
