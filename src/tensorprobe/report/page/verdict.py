"""The verdict of a comparison for its page: the sentence, both sides of it, what else differs, and what to run next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorprobe.compare.result import CallResult, ValuePair, Verdict
from tensorprobe.report.compare_summary import Summary, find_worst
from tensorprobe.report.next_command import iter_repro_commands, iter_show_commands
from tensorprobe.report.page.call_table import CallTable
from tensorprobe.report.page.recorded import SIDES, Recorded
from tensorprobe.report.page.script import describe_script
from tensorprobe.report.page.source_line import find_source
from tensorprobe.run.call import Call
from tensorprobe.store.frame import describe_frame


def describe_verdict(summary: Summary, table: CallTable, recorded: Recorded) -> dict[str, Any]:
    """The `verdict` of the page."""
    verdict = summary.verdict
    place = table.find_place(verdict.rank_name)
    losses = verdict.losses
    commands = (*iter_show_commands(summary), *iter_repro_commands(summary))
    return {
        "kind": verdict.kind,
        "headline": verdict.headline,
        "evidence": list(verdict.evidence),
        "agrees": verdict.kind == "agree",
        "place": place,
        "call": table.find(place, verdict.call),
        "effect": verdict.effect,
        "loss": None if losses is None else dict(zip(SIDES, losses, strict=True)),
        "sides": {side: _describe_side(side, verdict, table, recorded) for side in SIDES},
        "commands": [{"what": one.what, "command": one.command} for one in commands],
        "script": describe_script(verdict, place, recorded),
    }


def find_side_calls(side: str, verdict: Verdict, table: CallTable) -> tuple[Call, ...]:
    """The calls of one run that the verdict names; several where they stand against one call of the other run."""
    call, place = verdict.call, table.find_place(verdict.rank_name)
    if call is None:
        return ()
    calls, others = (call.reference, call.candidate) if side == SIDES[0] else (call.candidate, call.reference)
    if verdict.region and verdict.region[0] in calls:
        return verdict.region
    is_lent = calls[-1] is others[-1] and place is not None and not table.has_call(place, side, calls[-1])
    return () if is_lent else calls


def _describe_side(side: str, verdict: Verdict, table: CallTable, recorded: Recorded) -> dict[str, Any] | None:
    calls, call = find_side_calls(side, verdict, table), verdict.call
    if not calls or call is None:
        return None
    location = call.reference_location if side == SIDES[0] else call.candidate_location
    stack = recorded.find_stack(side, table.find_place(verdict.rank_name), calls[0].name)
    return {
        "calls": [one.name for one in calls],
        "module": calls[0].module_path,
        "location": describe_frame(location) if location else None,
        "source": find_source(location),
        "stack": [describe_frame(frame) for frame in stack],
    }


def describe_others(summary: Summary, table: CallTable) -> list[dict[str, Any]]:
    """The other differences: first those that executing both runs again found, by what they do to the loss, then those
    that `compare` found by their errors."""
    told: set[int | None] = set()
    found = []
    for place_name, call, worst, effect in _iter_others(summary):
        place = table.find_place(place_name)
        number = table.find(place, call)
        if number is None or number not in told:
            told.add(number)
            found.append(
                {
                    "call": number,
                    "place": place,
                    "name": call.name,
                    "role": call.role,
                    "because": call.because,
                    "effect": effect,
                    "error": worst.error if worst else None,
                    "tolerance": worst.tolerance if worst else None,
                }
            )
    return found


def _iter_others(summary: Summary) -> Iterator[tuple[str | None, CallResult, ValuePair | None, float | None]]:
    verdict = summary.verdict
    for one in sorted(verdict.others, key=lambda one: -(one.effect or 0.0)):
        yield verdict.rank_name, one.call, find_worst(one.call), one.effect
    for source in summary.sources:
        yield source.place, source.call, source.worst, None
