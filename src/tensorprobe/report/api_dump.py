"""A comparison of two api_dumps as TroubleShooter's tables: which calls were paired, and how their values compare,
forward and backward. The titles of the columns are its own.

The rows are built first; the printed table and the CSV file only lay them out. A table goes whole to a terminal and to
a pipe.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorprobe.compare.result import CallResult, Comparison, RankResult, ValuePair
from tensorprobe.errors import UsageError
from tensorprobe.model.name import BACKWARD, FORWARD
from tensorprobe.model.record import Number
from tensorprobe.report.cell import defuse
from tensorprobe.report.escape import clean
from tensorprobe.run.call import Call
from tensorprobe.store import disk
from tensorprobe.store.slot import Slot, TensorSlot

MAPPING_FILE, FORWARD_FILE, BACKWARD_FILE = (
    "ts_api_mapping.csv",
    "ts_api_forward_compare.csv",
    "ts_api_backward_compare.csv",
)
FILES = (MAPPING_FILE, FORWARD_FILE, BACKWARD_FILE)

_MAPPING_TITLE = "The APIs mapping results of the two frameworks"
_SHAPES = ("shape of orig", "shape of target")
_OF_TENSORS = ("result of allclose", "ratio of allclose", "cosine similarity", "mean & max diffs")
_OF_STATISTICS = ("max, min, mean diffs",)
_RANK = "RANK"
_ABSENT = "nan"
_SINGLE: dict[str, str] = {FORWARD: "output", BACKWARD: "input"}
"""What has no number in its name where a call has only one of it."""


@dataclass(frozen=True)
class Table:
    """One table: its title, its columns and its rows, as text. A cell of several calls has a line for each."""

    title: str
    file_name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def build_tables(comparison: Comparison, frameworks: tuple[str, str]) -> list[Table]:
    """The three tables of each rank, in the order in which they are printed."""
    names = (f"ORIGIN NET ({frameworks[0]})", f"TARGET NET ({frameworks[1]})")
    has_tensors = any(rank.bases["tensor"] for rank in comparison)
    numbers = _OF_TENSORS if has_tensors else _OF_STATISTICS
    tables = []
    for rank in comparison if comparison.ranks else (None,):
        place = f" ({clean(rank.reference_name)})" if rank is not None and len(comparison.ranks) > 1 else ""
        mapping = tuple(_iter_mapping(rank)) if rank is not None else ()
        tables.append(Table(_MAPPING_TITLE + place, MAPPING_FILE, names, mapping))
        for direction, file_name in ((FORWARD, FORWARD_FILE), (BACKWARD, BACKWARD_FILE)):
            rows = tuple(_iter_values(rank, direction, has_tensors)) if rank is not None else ()
            title = f"The {direction} comparison results{place}"
            tables.append(Table(title, file_name, (*names, *_SHAPES, *numbers), rows))
    return tables


def format_table(table: Table) -> str:
    """The table with its title; the calls of a mapping are apart by lines, because a cell may have several."""
    try:
        import prettytable
    except ImportError:
        raise UsageError('the tables need prettytable: pip install "tensorprobe[compare]"') from None
    drawn = prettytable.PrettyTable(table.columns)
    drawn.title = table.title
    if table.file_name == MAPPING_FILE:
        drawn.hrules = getattr(prettytable, "HRuleStyle", prettytable).ALL  # before 3.11 a constant of the module
    drawn.add_rows([list(row) for row in table.rows])
    return drawn.get_string()


def write_tables(folder: Path, comparison: Comparison, tables: Sequence[Table]) -> list[Path]:
    """The three CSV files, each whole; with several ranks each row says of which it is."""
    ranks = [clean(rank.reference_name) for rank in comparison]
    written = []
    for name in FILES:
        path = folder / name
        own = [table for table in tables if table.file_name == name]
        try:
            with disk.open_whole(path) as file:
                file.write(_format_csv(own, ranks).encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise UsageError(f"{path} could not be written ({error.strerror or error}).") from error
        written.append(path)
    return written


def _format_csv(tables: Sequence[Table], ranks: Sequence[str]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    has_ranks = len(ranks) > 1
    writer.writerow(([_RANK] if has_ranks else []) + list(tables[0].columns))
    for number, table in enumerate(tables):
        for row in table.rows:
            writer.writerow(([ranks[number]] if has_ranks else []) + [defuse(cell) for cell in row])
    return text.getvalue()


def _iter_mapping(rank: RankResult) -> Iterator[tuple[str, str]]:
    """Each call once, in the order of the reference; then those that only the candidate makes."""
    placed = [(call.reference[0].position, call.reference, call.candidate) for call in rank.calls]
    placed += [(lone.call.position, (lone.call,), ()) for lone in rank.only_reference]
    sides = [(reference, candidate) for _, reference, candidate in sorted(placed, key=lambda one: one[0])]
    sides += [((), (lone.call,)) for lone in rank.only_candidate]
    paired = (
        {_call_name(call) for found in rank.calls for call in found.reference},
        {_call_name(call) for found in rank.calls for call in found.candidate},
    )
    seen: set[tuple[str, str]] = set()
    for reference, candidate in sides:
        row = ("\n".join(map(_call_name, reference)), "\n".join(map(_call_name, candidate)))
        is_known = (not candidate and row[0] in paired[0]) or (not reference and row[1] in paired[1])
        if row not in seen and not is_known:  # the backward of a call is paired as its forward is, or not there
            seen.add(row)
            yield row


def _iter_values(rank: RankResult, direction: str, has_tensors: bool) -> Iterator[tuple[str, ...]]:
    """A row for each pair of tensors that both were saved, and for each that only one side has."""
    for call in rank.calls:
        if call.reference[-1].direction == direction:
            for value in call.values:
                if value.is_tensor and _is_saved(value, has_tensors):
                    yield _make_row(value, call, has_tensors)
    for lones, side in ((rank.only_reference, 0), (rank.only_candidate, 1)):
        for lone in lones:
            if lone.call.direction == direction:
                for slot in lone.call.tensors:
                    reference, candidate = (slot, None) if side == 0 else (None, slot)
                    value = ValuePair(reference, candidate, "not comparable", None)
                    if _is_saved(value, has_tensors):
                        yield _make_row(value, lone.call, has_tensors)


def _is_saved(value: ValuePair, has_tensors: bool) -> bool:
    """What the filter of api_dump left out has statistics in dump.json, and no file."""
    slots = [slot for slot in (value.reference, value.candidate) if isinstance(slot, TensorSlot)]
    return not has_tensors or any(slot.data_name is not None for slot in slots)


def _make_row(value: ValuePair, holder: CallResult | Call, has_tensors: bool) -> tuple[str, ...]:
    slots = (value.reference, value.candidate)
    names = [_slot_name(slot, holder, side) for side, slot in enumerate(slots)]
    shapes = [
        str(list(slot.shape)) if isinstance(slot, TensorSlot) and slot.shape is not None else "" for slot in slots
    ]
    return (*names, *shapes, *(_show_tensors(value) if has_tensors else _show_statistics(value)))


def _slot_name(slot: Slot | None, holder: CallResult | Call, side: int) -> str:
    """As the info file has it."""
    if slot is None:
        return ""
    if isinstance(slot, TensorSlot) and slot.data_name is not None:
        return clean(slot.data_name.removesuffix(".npy"))
    calls = (holder,) if isinstance(holder, Call) else (holder.reference, holder.candidate)[side]
    call = next((one for one in calls if slot in one.slots), calls[-1])
    role, _, place = slot.slot.partition(".")
    firsts = {other.slot.split(".")[1] for other in call.slots if other.slot.startswith(f"{role}.")}
    if _SINGLE.get(call.direction) == role and firsts == {"0"}:
        place = place.removeprefix("0").removeprefix(".")
    return clean(f"{call.name}_{role}{f'.{place}' if place else ''}")


def _call_name(call: Call) -> str:
    return clean(call.name.removesuffix(call.direction).rstrip("_."))


def _show_tensors(value: ValuePair) -> tuple[str, str, str, str]:
    words = _describe(value)
    found = value.measurement
    if words is not None or found is None:
        return words or "not compared", _ABSENT, _ABSENT, f"{_ABSENT}, {_ABSENT}"
    share = math.nan if found.allclose_share is None else found.allclose_share
    diffs = ", ".join(_show(number) for number in (found.mean_abs_error, found.max_abs_error))
    return str(found.allclose), f"{share:.2%}", _show(found.cosine), diffs


def _describe(value: ValuePair) -> str | None:
    """Why there are no numbers."""
    if value.reference is None or value.candidate is None:
        return "only in target" if value.reference is None else "only in orig"
    if value.measurement is not None and value.measurement.problem is not None:
        is_shape = value.measurement.is_other_shape
        return "Shape is inconsistent" if is_shape else clean(value.measurement.problem)
    if value.measurement is not None and value.measurement.allclose is None:
        words = f"compared by {value.measurement.basis}: {value.status}"
        return f"{clean(value.measurement.fallback)}; {words}" if value.measurement.fallback else words
    return None


def _show_statistics(value: ValuePair) -> tuple[str]:
    pairs = [_statistics(slot) for slot in (value.reference, value.candidate)]
    return (", ".join(_show(_difference(*numbers)) for numbers in zip(*pairs, strict=True)),)


def _statistics(slot: Slot | None) -> tuple[Number, Number, Number]:
    return (slot.max, slot.min, slot.mean) if isinstance(slot, TensorSlot) else (None, None, None)


def _difference(reference: Number, candidate: Number) -> float | None:
    if reference is None or candidate is None:
        return None
    return 0.0 if reference == candidate else abs(float(reference) - float(candidate))


def _show(number: float | None) -> str:
    return _ABSENT if number is None else f"{number:.5f}"
