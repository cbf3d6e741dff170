"""Was the call named? `exact`, `near` (the module around it, or inside the same one), `elsewhere`, `missed`."""

from __future__ import annotations

from migration.fault import Fault, Place
from tensorprobe.compare.result import Comparison, Verdict
from tensorprobe.run.call import Call
from tensorprobe.word.spelling import canonical_op

SCORES = ("exact", "near", "elsewhere", "missed")


def score(comparison: Comparison, fault: Fault, level: str) -> str:
    verdict = comparison.verdict
    if verdict.kind in ("agree", "not compared"):
        return "missed"
    calls = _named(verdict)
    if level == "L0":
        is_exact = any(call.path in fault.module_paths for call in calls)
    else:
        is_exact = any(_is_at(call, place) for call in calls for place in fault.at)
    if is_exact:
        return "exact"
    return "near" if any(_is_near(call, fault) for call in calls) else "elsewhere"


def _named(verdict: Verdict) -> list[Call]:
    """The calls that the verdict points at: the pair it names, and calls that only one run has."""
    calls = [] if verdict.call is None else [verdict.call.reference[-1], *verdict.call.candidate]
    return [*calls, *verdict.suspects[:3]]


def _is_at(call: Call, place: Place) -> bool:
    if call.kind != "api":
        return call.path == place.path
    path = call.module_path
    return path == place.path and canonical_op(call) in place.words


def _is_near(call: Call, fault: Fault) -> bool:
    """In the same module, in the one around it, or in one inside it."""
    path = call.path if call.kind != "api" else call.module_path
    places = [place.path for place in fault.at]
    if path is None or None in places:
        return path in places or path == ""
    return any(path == place or _parent(path) == place or _parent(str(place)) == path for place in places)


def _parent(path: str) -> str | None:
    return path.rpartition(".")[0] if path else None
