"""The verdict of a comparison for its page: the sentence, both sides of it, what else differs, and what to run next."""

from __future__ import annotations

from typing import Any

from tensorprobe.compare.result import CallResult
from tensorprobe.report.compare_summary import Summary
from tensorprobe.report.page.call_table import CallTable
from tensorprobe.run.call import Call
from tensorprobe.store.frame import describe_frame


def describe_verdict(summary: Summary, table: CallTable) -> dict[str, Any]:
    verdict = summary.verdict
    place = table.find_place(verdict.rank_name)
    call = verdict.call
    return {
        "kind": verdict.kind,
        "headline": verdict.headline,
        "evidence": list(verdict.evidence),
        "agrees": verdict.kind == "agree",
        "place": place,
        "call": table.find(place, call),
        "effect": None,
        "loss": None,
        "sides": {
            "reference": None if call is None else _describe_side(call.reference, call.reference_location),
            "candidate": None if call is None else _describe_side(call.candidate, call.candidate_location),
        },
        "commands": [],
    }


def _describe_side(calls: tuple[Call, ...], location: str | None) -> dict[str, Any]:
    return {
        "calls": [call.name for call in calls],
        "module": calls[-1].module_path,
        "location": describe_frame(location) if location else None,
        "source": None,
        "stack": [],
    }


def describe_others(summary: Summary, table: CallTable) -> list[dict[str, Any]]:
    """The other differences, as `compare` ranks them."""
    return [_describe_other(source.call, source.place, source.worst, table) for source in summary.sources]


def _describe_other(call: CallResult, place_name: str, worst: Any, table: CallTable) -> dict[str, Any]:
    place = table.find_place(place_name)
    return {
        "call": table.find(place, call),
        "place": place,
        "role": call.role,
        "because": call.because,
        "effect": None,
        "error": worst.error if worst else None,
        "tolerance": worst.tolerance if worst else None,
    }
