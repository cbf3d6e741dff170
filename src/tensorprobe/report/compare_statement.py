"""What is said beneath the verdict, in words: one statement a line. The terminal and XLSX lay them out.

Texts hold names from the dumps as they are: who prints them escapes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tensorprobe.compare.result import Coverage
from tensorprobe.compare.row import safe_repr
from tensorprobe.model.count import count_noun
from tensorprobe.model.unseen import advise
from tensorprobe.report.compare_summary import BASIS_WORDS, Circumstance, Source, Summary, UnpairedCall
from tensorprobe.report.escape import clean, shorten
from tensorprobe.report.table import format_number
from tensorprobe.store.frame import describe_frame

MAX_LISTED = 8

_MAX_NAME_TEXT = 200
_MAX_NAME_WIDTH = 48
_MAX_VALUE_TEXT = 120
_MAX_REASONS = 4

Mark = Literal["bad", "doubtful", "aside", ""]
_ROLE_MARKS: dict[str, Mark] = {"source": "bad", "entered": "bad", "drift": "doubtful", "discontinuity": "doubtful"}


@dataclass(frozen=True)
class Statement:
    """A label and what it says; the label is empty where it is that of the line above."""

    label: str
    text: str
    mark: Mark = ""


def iter_statements(summary: Summary, where_more: str, *, is_beside_tables: bool = False) -> Iterator[Statement]:
    """All but the verdict and the matrix. Lists end after a few lines and then say where the rest can be seen.
    `is_beside_tables`: calls without a partner and problems are listed in full elsewhere."""
    yield Statement("reference", summary.reference)
    yield Statement("candidate", summary.candidate)
    is_agreed = summary.verdict.kind == "agree"
    if is_agreed:
        yield from _label_first("this covers", _coverage_statements(summary))
    yield from _label_first("circumstances", _circumstance_statements(summary))
    yield from _label_first("also", _source_statements(summary, where_more))
    yield from _count_statements(summary)
    if not is_agreed:
        yield from _label_first("coverage", _coverage_statements(summary))
    if is_beside_tables:
        return
    yield from _label_first("no partner", _unpaired_statements(summary, where_more))
    yield from _label_first("problems", (Statement("", problem, "doubtful") for problem in summary.problems))


def _count_statements(summary: Summary) -> Iterator[Statement]:
    yield Statement("calls", describe_counts(summary.calls))
    yield Statement("tensors", describe_counts(summary.tensors))
    if summary.arguments:
        yield Statement("arguments", describe_counts(summary.arguments))
    if summary.framework_calls:
        made = describe_counts(summary.framework_calls)
        yield Statement(
            "", f"and of the calls that the framework makes itself, such as an optimizer's: {made}", "aside"
        )


def describe_counts(counts: Mapping[str, int]) -> str:
    """`1 source · 12 propagated · 420 clean`"""
    return " · ".join(f"{count:,} {word}" for word, count in counts.items()) or "none"


def format_share(share: float) -> str:
    """`99.9 %`: rounded down, so that 100 % is all of it."""
    return f"{int(share * 1000) / 10:g} %"


def shorten_name(name: str) -> str:
    """Cleaned here already, because its width counts."""
    return shorten(clean(name), _MAX_NAME_TEXT)


def _coverage_statements(summary: Summary) -> Iterator[Statement]:
    """What was held against what, and what was not."""
    coverage = summary.coverage
    yield Statement(
        "",
        f"{_of(coverage.paired_reference, coverage.reference_calls, 'call')} of the reference and "
        f"{_of(coverage.paired_candidate, coverage.candidate_calls)} of the candidate have a partner "
        f"({format_share(coverage.share)})",
    )
    if summary.idle:
        sides = f"{coverage.idle_reference:,} of the reference and {coverage.idle_candidate:,} of the candidate"
        yield Statement("", f"{sides} need no partner: no-ops, or modules whose inner calls are paired")
    bases = ", ".join(f"{count:,} {BASIS_WORDS.get(basis, basis)}" for basis, count in summary.bases.items())
    was = "was" if coverage.values == 1 else "were"
    compared = f"{_of(coverage.compared_values, coverage.values, 'tensor')} {was} compared"
    yield Statement("", f"{compared}: {bases}" if bases else compared)
    for text in _not_covered(coverage, summary):
        yield Statement("", text, "doubtful")


def _not_covered(coverage: Coverage, summary: Summary) -> Iterator[str]:
    if summary.fallbacks:
        yield f"compared only by their records: {_count_reasons(summary.fallbacks)}"
    if summary.obstacles:
        yield f"not compared: {_count_reasons(summary.obstacles)}"
    for side, unseen in (("reference", coverage.unseen_reference), ("candidate", coverage.unseen_candidate)):
        if unseen:
            reasons = ", ".join(f"{reason} ({count:,})" for reason, count in unseen.items())
            yield f"NOT SEEN when the {side} was recorded: {reasons}"
    advice = advise([*coverage.unseen_reference, *coverage.unseen_candidate])
    if advice:
        yield advice
    if summary.cut_short:
        yield f"--first: nothing was compared after the first source in {_join_some(summary.cut_short)}"


def _count_reasons(reasons: Mapping[str, int]) -> str:
    words = tuple(f"{shorten_name(reason)} ({count:,})" for reason, count in reasons.items())
    return _join_some(words, _MAX_REASONS)


def _circumstance_statements(summary: Summary) -> Iterator[Statement]:
    yield from map(_circumstance_statement, summary.circumstances)
    yield from (Statement("", note, "doubtful") for note in summary.notes)


def _circumstance_statement(found: Circumstance) -> Statement:
    reference, candidate = (
        shorten(_value_text(value), _MAX_VALUE_TEXT) for value in (found.reference, found.candidate)
    )
    places = f"  (in {_join_some(found.places)})" if found.places else ""
    return Statement("", f"{found.key}: {reference} in the reference, {candidate} in the candidate{places}")


def _source_statements(summary: Summary, where_more: str) -> Iterator[Statement]:
    shown = summary.sources[:MAX_LISTED]
    width = _name_width(source.call.name for source in shown)
    for source in shown:
        name = f"{shorten_name(source.call.name):<{width}}"
        text = f"{name}  {_describe_source(source, summary.has_several_ranks)}"
        yield Statement("", text, _ROLE_MARKS.get(source.call.role, ""))
        yield from (Statement("", f"  {detail}", "aside") for detail in _source_details(source))
    yield from _more_statement(len(summary.sources), where_more)


def _describe_source(source: Source, has_several_ranks: bool) -> str:
    words: list[str] = [source.call.role]
    if source.worst is not None:
        words.append(f"error {format_number(source.worst.error)}")
        if source.worst.tolerance is not None:
            words.append(f"tolerance {format_number(source.worst.tolerance)}")
    if source.call.module_path:
        words.append(f"in {shorten_name(source.call.module_path)}")
    if has_several_ranks:
        words.append(f"({source.place})")
    return "  ".join(words)


def _source_details(source: Source) -> Iterator[str]:
    call = source.call
    if call.because:
        yield call.because
    yield from dict.fromkeys(describe_frame(one) for one in (call.reference_location, call.candidate_location) if one)


def _unpaired_statements(summary: Summary, where_more: str) -> Iterator[Statement]:
    shown = _choose_of_both(summary.unpaired)
    width = _name_width(one.found.call.name for one in shown)
    for one in shown:
        yield Statement("", f"{shorten_name(one.found.call.name):<{width}}  {_describe_unpaired(one, summary)}")
    yield from _more_statement(len(summary.unpaired), where_more)
    if summary.framework_unpaired:
        calls = count_noun(len(summary.framework_unpaired), "call")
        text = f"{calls} that the framework makes itself, such as an optimizer's"
        yield Statement("", text, "aside")


def _choose_of_both(unpaired: tuple[UnpairedCall, ...]) -> list[UnpairedCall]:
    """The first ones, of both sides if both have some."""
    first = [one for one in unpaired if one.side == "reference"]
    second = [one for one in unpaired if one.side == "candidate"]
    room = max(MAX_LISTED // 2, MAX_LISTED - len(second))
    chosen = first[:room]
    return chosen + second[: MAX_LISTED - len(chosen)]


def _describe_unpaired(one: UnpairedCall, summary: Summary) -> str:
    module_path = one.found.call.module_path
    inside = f"in {shorten_name(module_path)}  " if module_path else ""
    return f"{inside}{one.description}" + (f"  ({one.place})" if summary.has_several_ranks else "")


def _more_statement(count: int, where_more: str) -> Iterator[Statement]:
    if count > MAX_LISTED:
        yield Statement("", f"and {count - MAX_LISTED:,} more: {where_more}", "aside")


def _label_first(label: str, statements: Iterable[Statement]) -> Iterator[Statement]:
    for index, statement in enumerate(statements):
        yield statement if index else replace(statement, label=label)


def _name_width(names: Iterable[str]) -> int:
    return min(max((len(shorten_name(name)) for name in names), default=0), _MAX_NAME_WIDTH)


def _join_some(words: tuple[str, ...], limit: int = MAX_LISTED) -> str:
    more = f" and {len(words) - limit:,} more" if len(words) > limit else ""
    return ", ".join(words[:limit]) + more


def _of(part: int, whole: int, noun: str = "") -> str:
    """`3 of 4 calls`, `all 4 calls`; of one, `1 call` or `0 of 1 call`"""
    share = "" if part == whole == 1 else "all " if part == whole and whole else f"{part:,} of "
    return f"{share}{count_noun(whole, noun)}" if noun else f"{share}{whole:,}"


def _value_text(value: object) -> str:
    return "nothing" if value is None else value if isinstance(value, str) else safe_repr(value)
