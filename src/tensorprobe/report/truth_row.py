"""The values of a run against their truth as rows: what text, CSV and JSON lay out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from tensorprobe.errors import UsageError
from tensorprobe.replay.result import Truth

ORDERS = ("order", "own", "error", "effect")
"""As the calls ran; by own error; by accumulated error; by effect on the loss. The largest first."""


@dataclass(frozen=True, slots=True)
class TruthRow:
    """One recorded value."""

    record: str
    slot: str
    dtype: str
    own_units: float | None
    """How far it is from what the call computes on its recorded inputs, in units of rounding."""
    accumulated_relative: float | None
    """How far it is from its truth, relative to it."""
    effect_on_loss: float | None
    overflow_count: int
    underflow_count: int


COLUMNS = tuple(field.name for field in fields(TruthRow))
_KEYS = {"own": "own_units", "error": "accumulated_relative", "effect": "effect_on_loss"}


def build_truth_rows(truth: Truth, sort: str = "order", text: str | None = None) -> list[TruthRow]:
    """All values, or those with `text` in their record's name, in the order that was asked for."""
    if sort not in ORDERS:
        raise UsageError(f"--sort {sort!r} is not one of {', '.join(ORDERS)}")
    rows = [row for row in _iter_rows(truth) if text is None or text.lower() in row.record.lower()]
    if sort == "order":
        return rows
    return sorted(rows, key=lambda row: abs(getattr(row, _KEYS[sort]) or 0.0), reverse=True)


def _iter_rows(truth: Truth) -> Iterator[TruthRow]:
    for row in truth.rows:
        error = row.accumulated
        yield TruthRow(
            record=row.record,
            slot=row.slot,
            dtype=row.dtype,
            own_units=row.own.units if row.own is not None else None,
            accumulated_relative=error.relative if error is not None else None,
            effect_on_loss=row.effect,
            overflow_count=error.overflow_count if error is not None else 0,
            underflow_count=error.underflow_count if error is not None else 0,
        )


def count_rows(truths: Iterable[Truth]) -> int:
    return sum(len(truth.rows) for truth in truths)
