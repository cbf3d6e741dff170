"""What to run next after a comparison, with the paths filled in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tensorprobe.model.name import FORWARD
from tensorprobe.report.compare_summary import Summary
from tensorprobe.report.escape import clean, shorten
from tensorprobe.run.call import Call

_PLACE = re.compile(r"(?:step(?P<step>\d+)/)?(?:rank(?P<rank>\d*)|.*)", re.ASCII | re.DOTALL)
_MAX_FILTER_TEXT = 200
_MAX_PATH_TEXT = 2000


@dataclass(frozen=True)
class Command:
    """A line for a shell, and what it does."""

    what: str
    command: str


def iter_show_commands(summary: Summary) -> Iterator[Command]:
    """The calls of the verdict in full, on both sides."""
    for side, path, place, call in _iter_sides(summary):
        name = shlex.quote(clean(call.name)[:_MAX_FILTER_TEXT])  # a filter looks for a part of the name
        yield Command(f"show the call of the {side}", f"tensorprobe show {path}{place} --filter {name}")


def iter_repro_commands(summary: Summary) -> Iterator[Command]:
    """Scripts that repeat the calls of the verdict; a name that cannot be typed has none."""
    for side, path, place, call in _iter_sides(summary):
        name = find_repeated(call)
        if name is not None:
            command = f"tensorprobe repro {path} {shlex.quote(name)}{place} -o repro_{side}"
            yield Command(f"a script that repeats the call of the {side}", command)


def find_repeated(call: Call) -> str | None:
    """The record that a script repeats: of a function, forward."""
    name = call.in_direction(FORWARD) if call.phase else call.name
    return name if call.kind == "api" and name == clean(name) else None


def _iter_sides(summary: Summary) -> Iterator[tuple[str, str, str, Call]]:
    call = summary.verdict.call
    if call is None:
        return
    sides = (("reference", summary.reference, call.reference), ("candidate", summary.candidate, call.candidate))
    for (side, path, calls), place in zip(sides, summary.verdict_places, strict=True):
        yield side, shlex.quote(shorten(clean(path), _MAX_PATH_TEXT)), _place_options(place), calls[-1]


def _place_options(rank_name: str) -> str:
    """` --step 0 --rank 3` for `step0/rank3`; outside distributed runs there is no rank to ask for."""
    found = _PLACE.fullmatch(rank_name)
    options = {"--step": found["step"], "--rank": found["rank"]} if found else {}
    return "".join(f" {option} {number}" for option, number in options.items() if number)
