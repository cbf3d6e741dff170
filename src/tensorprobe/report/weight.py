"""What became of every weight of a conversion: rows first, then text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tensorprobe.model.count import count_noun
from tensorprobe.model.weight_row import AMBIGUOUS, AS_IT_IS, DROPPED, KEPT, MAPPED, MISFIT, UNMAPPED, WeightRow
from tensorprobe.report.escape import clean

COLUMNS = ("source", "target", "status", "rule", "layout", "note")
_MAX_LINES = 200
_MAX_CHOICES = 4
_BY_SHAPE = ("alike", "shape")
_TURNED = ".T"
_NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.)")


@dataclass(frozen=True)
class WeightReport:
    """The rows of a conversion; printed, a summary and whatever is not plain."""

    rows: tuple[WeightRow, ...]

    @property
    def is_complete(self) -> bool:
        """Has every weight of both sides a partner, or a reason to have none?"""
        return not any(row.is_bad for row in self.rows)

    def having(self, *statuses: str) -> list[WeightRow]:
        """Those with one of these: mapped, dropped, kept, unmapped, ambiguous, shape."""
        return [row for row in self.rows if row.status in statuses]

    def table(self) -> list[dict[str, str]]:
        """All rows as texts, for a table of any kind."""
        return [dict(zip(COLUMNS, _cells(row), strict=True)) for row in self.rows]

    @property
    def summary(self) -> str:
        """One line: how many weights, by which rules, and how many found no place."""
        return _summary(self)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(report: WeightReport) -> list[str]:
    told = sorted((row for row in report.rows if _is_worth_a_look(row)), key=lambda row: not row.is_bad)
    lines = [_summary(report), *_remarks(report)]
    if told:
        cells = [COLUMNS, *(_cells(row) for row in told[:_MAX_LINES])]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
    if len(told) > _MAX_LINES:
        lines.append(f"… and {len(told) - _MAX_LINES} more; report.rows has them all")
    return lines


def _is_worth_a_look(row: WeightRow) -> bool:
    if row.status == AMBIGUOUS and row.source is None:
        return False  # it is among the choices of one of the source
    return row.status != MAPPED or row.layout != AS_IT_IS or bool(row.note) or row.rule in _BY_SHAPE


def _summary(report: WeightReport) -> str:
    mapped = report.having(MAPPED)
    rules = Counter(row.rule for row in mapped)
    by_rule = ", ".join(f"{count} by {rule}" if rule != "tied" else f"{count} tied" for rule, count in rules.items())
    counts = [f"{count_noun(len(mapped), 'weight')} mapped" + (f" ({by_rule})" if by_rule else "")]
    for status, word in ((DROPPED, "dropped"), (KEPT, "kept as they were in the target"), (MISFIT, "of another shape")):
        if found := report.having(status):
            counts.append(f"{len(found)} {word}")
    if unsure := sum(row.note.startswith("uncertain") for row in mapped):
        counts.append(f"{unsure} uncertain")
    if unclear := report.having(AMBIGUOUS):
        counts.append(f"{len(unclear)} ambiguous")
    lost = report.having(UNMAPPED)
    if source := sum(row.source is not None for row in lost):
        counts.append(f"{source} of the source go nowhere")
    if target := sum(row.source is None for row in lost):
        counts.append(f"{target} of the target get nothing")
    return "; ".join(counts)


def _remarks(report: WeightReport) -> list[str]:
    lines = []
    if by_shape := sum(row.rule in _BY_SHAPE for row in report.having(MAPPED)):
        lines.append(f"{by_shape} were paired although their names differ: look at them, or pass mapping=")
    if entries := list(dict.fromkeys(_suggest(row) for row in report.having(AMBIGUOUS))):
        lines.append(
            "What is ambiguous was left out. Say what is right (a module stands for all below it), or pass dumps=:"
        )
        lines += [f"  mapping={{{clean(entry)}}}" for entry in entries[:_MAX_LINES] if entry]
    return lines


def _suggest(row: WeightRow) -> str:
    """What to write into the mapping; "" for what another row says as well."""
    name = row.source.name if row.source else row.target.name if row.target else ""
    if row.choices[-1].endswith(_TURNED):
        name, *choices = _star(name, *row.choices)
        return f'"{name}": {_one_of(choices)}'
    name, *choices = _star(*[one.rpartition(".")[0] or one for one in (name, *row.choices)])
    if not row.note:
        return f'"{name}": {_one_of(choices)}' if row.source else ""
    listed = ", ".join(f'"{choice}"' for choice in choices)
    if len(choices) == 1:
        return ""
    return f'"{name}": [{listed}]' if row.source else f'({listed}): "{name}"'


def _one_of(names: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(names))
    more = f" or {len(distinct) - _MAX_CHOICES} more" if len(distinct) > _MAX_CHOICES else ""
    return " or ".join(f'"{name}"' for name in distinct[:_MAX_CHOICES]) + more


def _star(*names: str) -> list[str]:
    """With a * for each number that all have in common, if they have no others."""
    numbers = {tuple(_NUMBER.findall(f".{name}.")) for name in names}
    return [_NUMBER.sub("*", f".{name}.").strip(".") for name in names] if len(numbers) == 1 else list(names)


def _cells(row: WeightRow) -> tuple[str, ...]:
    return (
        clean(row.source.name) if row.source else "",
        clean(row.target.name) if row.target else "",
        row.status,
        row.rule,
        row.layout,
        clean(row.note or (f"may be {_one_of(row.choices)}" if row.choices else "")),
    )
