"""What `show` says, for people: what is wrong first, then everything.

On a terminal the tree is cut at its width, because a wrapped tree cannot be read. Into a file or a pipe it goes whole,
so that what is written does not depend on the window. Names come from the dump: control characters in them are escaped.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tensorprobe.model.count import count_noun
from tensorprobe.model.unseen import advise
from tensorprobe.report.console import Fact, print_facts, print_lines
from tensorprobe.report.escape import clean
from tensorprobe.report.nonfinite import QUALITIES, NonFiniteCall, Quality, describe_count, holds
from tensorprobe.report.rank import Gradient, RankReport
from tensorprobe.report.table import (
    ASCII_GUIDES,
    COLUMNS,
    NARROW_GUIDES,
    NUMERIC_COLUMNS,
    SLOT_COLUMN,
    UNICODE_GUIDES,
    Line,
    format_number,
    iter_lines,
)
from tensorprobe.report.tree import fold_framework_calls
from tensorprobe.store.slot import is_count

_LABEL_WIDTH = 12
_MAX_NAME_WIDTH = 64
_MAX_LISTED = 8
_MIN_NAME_WIDTH = 12
_ROOMY_NAME_WIDTH = 28
_STYLES = {"heading": "bold", "nan": "bold red", "inf": "yellow", "failed": "red", "aside": "dim", "": ""}
_COVERAGE_WORDS = {
    "seen": "calls seen",
    "recorded": "recorded (forward and backward)",
    "filtered": "filtered",
    "excluded": "excluded",
    "failed": "failed inside capture",
}
_RECOMPUTATION_WORDS = {"recomputed": "recomputed in backward", "recomputed_differently": "RECOMPUTED DIFFERENTLY"}
_VERSION_KEYS = {"pytorch": "torch", "mindspore": "mindspore", "mindtorch": "mindspore"}
_LABEL_STYLES = {
    "NaN": "bold red",
    "Inf": "yellow",
    "failed": "bold red",
    "incomplete": "bold yellow",
    "problem": "yellow",
    "unreadable": "bold red",
}


def print_reports(console: Console, reports: Iterable[RankReport], has_filter: bool = False) -> None:
    """Every step and rank, then one line for each: that is what stays on the screen."""
    overview = []
    for report in reports:
        print_report(console, report, has_filter)
        overview.append(_overview_line(report))
    if len(overview) > 1:
        print_lines(console, [Text(), Text("all of them", "bold"), *overview])


def print_report(console: Console, report: RankReport, has_filter: bool = False) -> None:
    """One step of one process. With a filter only what was asked for, in full."""
    print_lines(console, _title_lines(report))
    if report.error:
        print_facts(console, [_fact("unreadable", report.error)])
        return
    print_facts(console, iter_state_facts(report))
    if not has_filter:
        print_facts(console, iter_finding_facts(report))
    elif not report.rows and not report.saved_rows:
        print_facts(console, [_fact("filter", "no record has this text in its name, module path, caller or error")])
    _print_rows(console, report, has_filter)


def _overview_line(report: RankReport) -> Text:
    noun = "record " if report.record_count == 1 else "records"
    line = Text(f"  {clean(report.name):<{_LABEL_WIDTH + 4}}  {report.record_count:>7,} {noun}")
    for quality in QUALITIES:
        count = len(report.non_finite.of(quality))
        line.append(f"  {count:>5,} with {quality}", _LABEL_STYLES[quality] if count else "dim")
    line.append(f"  {len(report.failed):>3,} failed", "red" if report.failed else "dim")
    line.append("  unreadable" if report.error else "" if report.is_complete else "  incomplete", "yellow")
    return line


def _title_lines(report: RankReport) -> Iterator[Text]:
    framework = report.header.get("framework")
    versions = report.run.get("versions")
    version = versions.get(_VERSION_KEYS.get(str(framework), "")) if isinstance(versions, dict) else None
    about = [report.header.get("task"), report.header.get("level"), f"{framework} {version}" if version else framework]
    has_records = report.record_count or not report.saved_count
    about.append(count_noun(report.record_count, "record") if has_records else None)
    about.append(count_noun(report.saved_count, "saved value") if report.saved_count else None)
    yield Text()
    yield Text(clean(report.name), "bold").append(
        "  " + clean(" · ".join(str(word) for word in about if word)), "not bold"
    )


def iter_state_facts(report: RankReport) -> Iterator[Fact]:
    """Is all of it there, and what does it cover?"""
    if report.is_recovered:
        yield _fact(
            "incomplete", "the run was killed and its files were recovered; what it still held in memory is missing"
        )
    elif not report.is_complete and report.ending is not None:
        yield _fact("incomplete", f"the run ended in this step with {report.ending}; all that it recorded is here")
    elif not report.is_complete:
        yield _fact(
            "incomplete", "the run was killed, or is still writing; every whole line that reached the disk is here"
        )
        yield _fact("", f"to close the files of a killed run: tensorprobe recover {shlex.quote(report.folder)}")
    for problem in report.problems:
        yield _fact("problem", problem)
    yield _coverage_fact(report)


def _coverage_fact(report: RankReport) -> Fact:
    coverage = report.coverage
    if coverage is None:
        return _fact("coverage", "not stated in this dump: calls may be missing without a trace", "yellow")
    is_cut_off = report.is_recovered or (not report.is_complete and report.ending is None)
    if is_cut_off and not coverage.get("seen"):
        return _fact("coverage", "not known: the run did not come to the end of a window", "yellow")
    parts = [_count_of(coverage, key, words) for key, words in _COVERAGE_WORDS.items()]
    parts += [_count_of(coverage, key, words) for key, words in _RECOMPUTATION_WORDS.items() if coverage.get(key)]
    unseen, stale = coverage.get("unseen"), coverage.get("stale")
    if stale:
        parts.append(_count_of(coverage, "stale", "STALE values, found by verify mode"))
    if isinstance(unseen, dict) and unseen:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in unseen.items())
        advice = advise(unseen)
        parts.append(f"NOT SEEN: {reasons}" + (f"; {advice}" if advice else ""))
    text = ("up to the last window: " if is_cut_off else "") + " · ".join(part for part in parts if part)
    return _fact("coverage", text or "not stated", "yellow" if coverage.get("failed") or stale or unseen else "")


def _count_of(coverage: Mapping[str, Any], key: str, words: str) -> str:
    count: Any = coverage.get(key)
    return (
        count_noun(count, words.replace("calls", "call").replace("values", "value"), words) if is_count(count) else ""
    )


def iter_finding_facts(report: RankReport) -> Iterator[Fact]:
    """NaN and Inf, failed calls, the last numbers, gradients."""
    for quality in QUALITIES:
        yield from _non_finite_facts(report, quality)
    for label, call in zip(_labels("failed"), report.failed[:_MAX_LISTED], strict=False):
        yield _fact(label, f"{call.name}  {call.failed}", "red")
        yield from _place_facts(report, call.name, None)
    yield from _more_facts(len(report.failed), "more failed call", "more failed calls")
    if report.scalars:
        values = "   ".join(f"{record} {format_number(value)}" for record, value in report.scalars)
        yield _fact("scalars", values)
    if report.gradients:
        yield from _gradient_facts(report.gradients)


def _non_finite_facts(report: RankReport, quality: Quality) -> Iterator[Fact]:
    """Where it arises, one entry a source line; then how far it went."""
    places = report.non_finite.places(quality)
    groups = list(_group_by_line(report, places))
    for label, group in zip(_labels(quality), groups[:_MAX_LISTED], strict=False):
        yield _fact(label, _describe_place(group, quality), _LABEL_STYLES[quality])
        yield from _place_facts(report, group[0].call.name, group[0].call.told_path)
    yield from _more_facts(len(groups), f"more place where {quality} arises", f"more places where {quality} arises")
    carried = len(report.non_finite.of(quality)) - len(places)
    if carried:
        told = count_noun(carried, "other record carries", "other records carry")
        yield _fact("", f"{told} {quality} on", "dim")


def _group_by_line(report: RankReport, places: list[NonFiniteCall]) -> Iterator[list[NonFiniteCall]]:
    """The same line in twelve layers is one finding."""
    groups: dict[str, list[NonFiniteCall]] = {}
    for found in places:
        groups.setdefault(report.locations.get(found.call.name, found.call.name), []).append(found)
    return iter(groups.values())


def _describe_place(group: list[NonFiniteCall], quality: Quality) -> str:
    first = group[0]
    slot = next(slot for slot in first.slots if holds(slot, quality))
    total = f" of {slot.element_count:,}" if slot.element_count else ""
    count = describe_count(slot, quality)
    what = f"{first.call.name}  {slot.slot}  {count}{total}"
    origin = "comes in here, from outside" if first.origins[quality] == "enters" else "arises here"
    more = f", and in {count_noun(len(group) - 1, 'more call')} from this line" if len(group) > 1 else ""
    return f"{what}  {origin}{more}" + ("  (only -Inf: usual in a mask)" if count.startswith("-") else "")


def _place_facts(report: RankReport, record: str, module_path: str | None) -> Iterator[Fact]:
    words = [f"in {module_path}" if module_path else None, report.locations.get(record)]
    if any(words):
        yield _fact("", "  ".join(word for word in words if word), "dim")


def _gradient_facts(gradients: tuple[Gradient, ...]) -> Iterator[Fact]:
    finite = [one for one in gradients if one.is_finite]
    text = count_noun(len(gradients), "parameter")
    if len(finite) < len(gradients):
        text += f", {len(gradients) - len(finite):,} of them with NaN or Inf"
    if finite:
        largest = max(finite, key=lambda one: one.norm)
        text += f"; the largest norm is {format_number(largest.norm)}, of {largest.parameter}"
    yield _fact("gradients", text)
    zero = [one.parameter for one in finite if one.norm == 0]
    if zero:
        more = f" and {len(zero) - _MAX_LISTED:,} more" if len(zero) > _MAX_LISTED else ""
        yield _fact("", f"all zero: {', '.join(zero[:_MAX_LISTED])}{more}", "yellow")


def _more_facts(count: int, singular: str, plural: str) -> Iterator[Fact]:
    if count > _MAX_LISTED:
        yield _fact("", f"{count_noun(count - _MAX_LISTED, singular, plural)}; --json lists all", "dim")


def _labels(first: str) -> Iterator[str]:
    yield first
    while True:
        yield ""


def _fact(label: str, text: str, style: str = "") -> Fact:
    return Fact(Text(f"  {label:<{_LABEL_WIDTH}}", _LABEL_STYLES.get(label, "bold")), Text(clean(text), style))


def _print_rows(console: Console, report: RankReport, has_filter: bool) -> None:
    rows = [*report.rows, *report.saved_rows]
    if not has_filter:
        rows = fold_framework_calls(rows, _notable_records(report))
    guides = UNICODE_GUIDES if "utf" in console.encoding.lower() else ASCII_GUIDES
    locations = report.locations if has_filter else None
    lines = [_clean_line(line) for line in iter_lines(rows, guides, locations)]
    widths = _column_widths(lines)
    if console.is_terminal and widths[0] + _needed(widths) > console.width:
        narrow = iter_lines(rows, NARROW_GUIDES[guides], locations, is_narrow=True)
        lines = [_clean_line(line) for line in narrow]
        widths = _fit(_column_widths(lines), console.width, keeps_slots=has_filter)
        lines = [_shorten_name(line, widths[0]) for line in lines]
    print_lines(console, (_table_line(line, widths) for line in lines))


def _notable_records(report: RankReport) -> set[str]:
    places = [found for quality in QUALITIES for found in report.non_finite.places(quality)]
    return {found.call.name for found in places} | {call.name for call in report.failed}


def _clean_line(line: Line) -> Line:
    return Line(line.guide, clean(line.label), tuple(clean(cell) for cell in line.cells), line.mark)


def _column_widths(lines: list[Line]) -> list[int]:
    """The width of the tree, then of each column; a column in which nothing stands has none."""
    rows = [line for line in lines if line.cells]
    names = max((len(line.guide) + cell_len(line.label) for line in rows), default=0)
    filled = [line for line in rows if line.mark != "heading"]
    widths = [max((cell_len(line.cells[column]) for line in filled), default=0) for column in range(len(COLUMNS))]
    titled = [max(width, len(title)) if width else 0 for width, title in zip(widths, COLUMNS, strict=True)]
    return [min(names, _MAX_NAME_WIDTH), *titled]


def _needed(widths: list[int]) -> int:
    """How wide the columns are that a window should show, beside the tree: up to the slot."""
    return sum(width + 2 for width in widths[1 : 2 + SLOT_COLUMN] if width)


def _fit(widths: list[int], room: int, *, keeps_slots: bool) -> list[int]:
    """Names give way first, then the slots."""
    if not keeps_slots and room - _needed(widths) < min(widths[0], _ROOMY_NAME_WIDTH):
        widths = [*widths[: 1 + SLOT_COLUMN], 0, 0, *widths[3 + SLOT_COLUMN :]]
    return [min(widths[0], max(room - _needed(widths), _MIN_NAME_WIDTH)), *widths[1:]]


def _shorten_name(line: Line, width: int) -> Line:
    """Without its middle: `Functional.layer_norm.12` is told by its end."""
    room = max(width - len(line.guide), _MIN_NAME_WIDTH // 2)
    if line.mark == "place" or cell_len(line.label) <= room:
        return line
    first = (room - 1) // 3
    begin, end = _take(line.label, first), _take(line.label[::-1], room - 1 - first)[::-1]
    return replace(line, label=f"{begin}…{end}")


def _take(text: str, room: int) -> str:
    """As many characters as have room; a Chinese one takes two places."""
    while cell_len(text) > room:
        text = text[: room if len(text) > room else -1]
    return text


def _pad(cell: str, width: int, *, is_number: bool) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if is_number else cell + space


def _table_line(line: Line, widths: list[int]) -> Text:
    if line.mark == "place":
        return Text(line.guide, "dim").append(f"  {line.label}", "dim")
    style = _STYLES[line.mark]
    name_style = style if line.mark in ("heading", "failed", "aside") else ""
    text = Text("\n" if line.mark == "heading" else "").append(line.guide, "dim").append(line.label, name_style)
    gap = widths[0] - len(line.guide) - cell_len(line.label)
    cells = []
    for index, (cell, width) in enumerate(zip(line.cells, widths[1:], strict=True)):
        if width:
            cells.append(_pad(cell, width, is_number=index in NUMERIC_COLUMNS))
    text.append(" " * (max(gap, 0) + 2))
    text.append("  ".join(cells), "dim" if line.mark == "heading" else style)
    text.rstrip()
    return text
