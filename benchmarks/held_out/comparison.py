"""Compares what was recorded of a case, and judges what was said."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorprobe
from held_out.answer import LARGEST_GROUP, Answer, Line, Named, Saying, judge, path_of
from held_out.record import Case, Setting, read_lines


@dataclass(frozen=True)
class Result:
    subject: str
    case: str
    is_right: bool
    has_effect: bool
    dtype: str
    level: str
    task: str
    by: str
    outcome: str
    verdict: str
    headline: str
    named: list[str]
    seconds: float


def compare_case(case: Case, recorded: tuple[Path, Path, Answer | None], setting: Setting, by: str) -> Result:
    reference, candidate, answer = recorded
    began = time.perf_counter()
    try:
        comparison = tensorprobe.compare(reference, candidate, by=by, processes=1)
        saying = make_saying(comparison, (reference, candidate), case.files)
    except Exception as error:  # one case that fails is a result, too
        saying = Saying("error", f"{type(error).__name__}: {error}")
    return Result(
        case.subject,
        case.name,
        answer is None,
        answer is None or answer.has_effect,
        setting.dtype,
        setting.level,
        setting.task,
        by,
        judge(saying, answer),
        saying.kind,
        saying.text.partition("\n")[0],
        [f"{call.name} {sorted(call.lines)}" for call in saying.calls],
        round(time.perf_counter() - began, 2),
    )


def make_saying(comparison: Any, dumps: tuple[Path, Path], files: str) -> Saying:
    """What compare said: the calls of its verdict, and those that only one run makes, where they are few."""
    verdict = comparison.verdict
    sides = ([], []) if verdict.call is None else (list(verdict.call.reference), list(verdict.call.candidate))
    if len(verdict.suspects) <= LARGEST_GROUP:
        for suspect in verdict.suspects:
            for number in find_sides(suspect, comparison):
                sides[number].append(suspect)
    named = []
    for calls, dump in zip(sides, dumps, strict=True):
        if 0 < len(calls) <= 2 * LARGEST_GROUP:
            lines = read_lines(dump, files)
            named += [make_named(call.name, call.module_path, lines) for call in calls]
    return Saying(verdict.kind, "\n".join((verdict.headline, *verdict.evidence)), tuple(named))


def find_sides(suspect: Any, comparison: Any) -> list[int]:
    """In which run a call is that has no partner: 0 the reference, 1 the candidate; both where that is not known."""
    ranks = comparison.ranks
    lists = ([rank.only_reference for rank in ranks], [rank.only_candidate for rank in ranks])
    found = [number for number in (0, 1) if any(one is suspect for calls in lists[number] for one in calls)]
    return found or [0, 1]


def make_named(name: str, module_path: str | None, lines: dict[str, Line]) -> Named:
    """A backward call stands at the line of its forward."""
    line = lines.get(name) or lines.get(name.replace(".backward", ".forward"))
    return Named(name, path_of(name, module_path), frozenset() if line is None else frozenset({line}))
