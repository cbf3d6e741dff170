"""Was it right? What a tool said about a case, held against the truth.

- `exact`: the named call is one of the accepted ones (see truth.py), and the verdict is of a kind that fits the fault.
- `receiver`: at L0, a module was named that only received the wrong value, from the module that is wrong. Not exact.
- `wrong kind`: the right call, but the verdict says another thing of it.
- `off`: another call; the distance is how many records lie between it and the nearest accepted one.
- `missed`: it said that the runs agree. `error`: it did not finish.

A group of calls is named if it holds the call and is small; so are calls without a counterpart if they are few: naming
everything names nothing. Unfaulted pairs are `silent` or a `false alarm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fault.case import Case
from fault.dump import Dump
from fault.truth import Truth

LARGEST_GROUP = 8
MOST_SUSPECTS = 5
OUTCOMES = ("exact", "receiver", "wrong kind", "off", "missed", "error", "silent", "false alarm")


@dataclass(frozen=True)
class Saying:
    """What a tool said, in terms that all tools have."""

    verdict: str
    """`agree`, or what kind of difference; `error`."""
    reference: tuple[str, ...] = ()
    candidate: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Score:
    case: Case
    tool: str
    outcome: str
    saying: Saying
    distance: int | None = None
    truth: Truth | None = None
    seconds: float = 0.0


def saying_of(comparison: Any) -> Saying:
    """Of a result of tensorprobe.compare."""
    verdict = comparison.verdict
    reference: list[str] = []
    candidate: list[str] = []
    if verdict.call is not None:
        reference += [call.name for call in verdict.call.reference[:LARGEST_GROUP]]
        candidate += [call.name for call in verdict.call.candidate[:LARGEST_GROUP]]
    suspects = [call.name for call in verdict.suspects]
    if len(suspects) <= MOST_SUSPECTS:
        reference += suspects
        candidate += suspects
    text = "\n".join((verdict.headline, *verdict.evidence))
    return Saying(verdict.kind, tuple(reference), tuple(candidate), text)


def judge_unfaulted(saying: Saying) -> str:
    if saying.verdict == "error":
        return "error"
    return "silent" if saying.verdict == "agree" else "false alarm"


def judge_faulted(saying: Saying, truth: Truth, reference: Dump, candidate: Dump) -> tuple[str, int | None]:
    if saying.verdict == "error":
        return "error", None
    if saying.verdict == "agree":
        return "missed", None
    is_named = bool(truth.reference.intersection(saying.reference) or truth.candidate.intersection(saying.candidate))
    if truth.parameter and saying.verdict == "unequal start":
        is_named = is_named or truth.parameter in saying.text or any(name in saying.text for name in truth.names)
    if is_named:
        return ("exact", 0) if saying.verdict in truth.verdicts | {"any"} else ("wrong kind", 0)
    distance = measure_distance(saying, truth, reference, candidate)
    if truth.receivers.intersection(saying.reference + saying.candidate):
        return "receiver", distance
    return "off", distance


def measure_distance(saying: Saying, truth: Truth, reference: Dump, candidate: Dump) -> int | None:
    """In records, on the side where it is smaller; None when nothing was named."""
    found = []
    for dump, named, accepted in (
        (reference, saying.reference, truth.reference),
        (candidate, saying.candidate, truth.candidate),
    ):
        order = {name: position for position, name in enumerate(dump.names)}
        found += [abs(order[one] - order[two]) for one in named if one in order for two in accepted]
    return min(found, default=None)
