"""A single run as the one document that its page is made of: plain data, with all texts as the dump has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tensorprobe._version import __version__
from tensorprobe.model.dtype import short_dtype
from tensorprobe.model.record import Number
from tensorprobe.replay.result import Truth
from tensorprobe.replay.truth_summary import summarize_truth
from tensorprobe.report.console import Fact
from tensorprobe.report.json import make_strict
from tensorprobe.report.page.column import Strings, make_number
from tensorprobe.report.page.run_finding import (
    draw_rows,
    find_gradients,
    find_lost_digits,
    find_nonfinite,
    find_overflow,
)
from tensorprobe.report.page.run_table import RunTable
from tensorprobe.report.rank import RankReport, ShowOptions, report_run
from tensorprobe.report.text import iter_finding_facts, iter_state_facts
from tensorprobe.run.call import Call
from tensorprobe.run.flow import Flow
from tensorprobe.run.step import Run, read_run
from tensorprobe.store import stored_file
from tensorprobe.store.frame import describe_frame
from tensorprobe.store.reader import Dump
from tensorprobe.store.slot import TensorSlot

VERSION = 1
"""Of the document."""

_SETTINGS = ("framework", "versions", "devices", "command", "settings", "environment", "task", "level", "started")
_MARKS = {"red": "bad", "bold red": "bad", "yellow": "doubtful", "bold yellow": "doubtful", "dim": "aside"}


def build_run_page(dump: Dump, truths: Sequence[Truth] = ()) -> dict[str, Any]:
    """The whole document. `truths` is what a replay in float64 says of the same steps, where it was asked."""
    table, reports = RunTable(), []
    for rank in dump.ranks():
        run = read_run(rank)
        table.add(run)
        reports.append(report_run(run, ShowOptions()))
    strings = Strings()
    nonfinite, overflow = find_nonfinite(table, reports), find_overflow(table)
    named = [nonfinite["row"], *nonfinite["fed_by"]] if nonfinite else []
    return {
        "version": VERSION,
        "kind": "run",
        "tensorprobe": __version__,
        "title": f"run: {stored_file.show(dump.path)}",
        "path": stored_file.show(dump.path),
        "places": table.places,
        "calls": _build_calls(table, strings),
        "rows": _build_rows(table, strings),
        "details": draw_rows(table, [*named, *(one["row"] for one in overflow)]),
        "problems": [f"{report.name}: {problem}" for report in reports for problem in report.problems],
        "run": make_strict(
            {
                "nonfinite": nonfinite,
                "gradients": find_gradients(table, reports),
                "overflow": overflow,
                "lost_digits": find_lost_digits(table, truths) if truths else None,
                "truth": _describe_truth(truths),
                "statements": [one for report in reports for one in _iter_statements(report, len(reports) > 1)],
                "settings": _describe_settings(reports[0].run) if reports else {},
            }
        ),
        "strings": strings.listed,
    }


def _describe_truth(truths: Sequence[Truth]) -> dict[str, Any] | None:
    """What the replay says, of the first step and rank in which something is wrong, or of the first."""
    chosen = next((truth for truth in truths if not truth), truths[0] if truths else None)
    if chosen is None:
        return None
    told = summarize_truth(chosen)
    wrong = [line.strip() for finding in told.findings for line in finding.split("\n")]
    place = f" ({chosen.name})" if len(truths) > 1 else ""
    return {
        "headline": told.headline + place,
        "is_right": bool(chosen),
        "evidence": [*wrong, *told.observables, *told.contributions, *told.decisions, *told.coverage],
    }


def _build_calls(table: RunTable, strings: Strings) -> dict[str, Any]:
    calls = [call for _, _, call in table.entries]
    results = [[slot for slot in call.tensors if not slot.is_input] for call in calls]
    first = [next((slot for slot in slots if slot.norm is not None), None) for slots in results]
    return {
        "place": [place for place, _, _ in table.entries],
        "name_s": strings.add_all(call.name for call in calls),
        "module_s": strings.add_all(run.context_path(call) for _, run, call in table.entries),
        "direction_s": strings.add_all(call.direction or None for call in calls),
        "operation_s": strings.add_all(call.op for call in calls),
        "location_s": strings.add_all(_locate(run, call) for _, run, call in table.entries),
        "caller_s": strings.add_all(call.caller for call in calls),
        "kind_s": strings.add_all(call.kind for call in calls),
        "max_abs": [_largest(slots) for slots in results],
        "nan_count": [_total(slots, "nan_count") for slots in results],
        "inf_count": [_total(slots, "inf_count") for slots in results],
        **{name: [slot and _plain(getattr(slot, name)) for slot in first] for name in ("norm", "min", "max", "mean")},
        "dtype_s": strings.add_all(short_dtype(slot.dtype) if slot else None for slot in first),
        "shape_s": strings.add_all(_describe_shape(slot) if slot else None for slot in first),
        "first_row": table.first_rows,
        "row_count": [len(table.rows_of(number)) for number in range(len(calls))],
    }


def _build_rows(table: RunTable, strings: Strings) -> dict[str, Any]:
    slots = [slot for _, slot in table.values]
    numbers = ("max", "min", "mean", "norm", "nan_count", "inf_count")
    return {
        "call": [number for number, _ in table.values],
        "place": [table.entries[number][0] for number, _ in table.values],
        "slot_s": strings.add_all(slot.slot for slot in slots),
        "dtype_s": strings.add_all(short_dtype(slot.dtype) for slot in slots),
        "shape_s": strings.add_all(map(_describe_shape, slots)),
        **{name: [_plain(getattr(slot, name)) for slot in slots] for name in numbers},
        "is_input": [slot.is_input for slot in slots],
        "parameter_s": strings.add_all(slot.parameter for slot in slots),
        "data_name_s": strings.add_all(slot.data_name for slot in slots),
        "source_s": strings.add_all(_iter_sources(table)),
    }


def _iter_sources(table: RunTable) -> Iterator[str | None]:
    """For each row the call that made its value, where that was recorded."""
    flows = [Flow(run) for run in table.runs]
    for number, slot in table.values:
        place, _, call = table.entries[number]
        producer = flows[place].producer(slot) if slot.is_input else None
        yield None if producer is None or producer is call else producer.name


def _locate(run: Run, call: Call) -> str | None:
    location = run.location(call)
    return describe_frame(location) if location else None


def _describe_shape(slot: TensorSlot) -> str | None:
    return None if slot.shape is None else str(list(slot.shape))


def _plain(number: Number) -> Any:
    return make_number(int(number) if isinstance(number, bool) else number)


def _largest(slots: Sequence[TensorSlot]) -> Any:
    sizes = [abs(number) for slot in slots for number in (slot.max, slot.min) if number is not None]
    return _plain(max(sizes)) if sizes else None


def _total(slots: Sequence[TensorSlot], name: str) -> int | None:
    counts = [count for slot in slots if (count := getattr(slot, name)) is not None]
    return sum(counts) if counts else None


def _iter_statements(report: RankReport, has_several: bool) -> Iterator[dict[str, str]]:
    """What `show` says above its table."""
    if has_several:
        yield {"label": report.name, "text": f"{report.record_count:,} records", "mark": ""}
    for fact in (*iter_state_facts(report), *iter_finding_facts(report)):
        yield {"label": fact.label.plain.strip(), "text": fact.text.plain, "mark": _mark(fact)}


def _mark(fact: Fact) -> str:
    return _MARKS.get(str(fact.text.style)) or _MARKS.get(str(fact.label.style), "")


def _describe_settings(run: Mapping[str, Any]) -> dict[str, Any]:
    return {name: run[name] for name in _SETTINGS if name in run}
