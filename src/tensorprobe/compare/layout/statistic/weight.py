"""Which weights of the candidate are those of the reference, whole or in parts, as far as statistics tell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tensorprobe.compare.layout.pool import Ranks
from tensorprobe.compare.layout.statistic.step import SummaryRanks
from tensorprobe.compare.layout.statistic.summary import Summary, join

_EXACT = 1e-6
"""Statistics of parts, put together, are those of the whole up to that."""
Kind = Literal["whole", "part", "stray", "unknown"]


@dataclass(frozen=True)
class SummaryHeld:
    """What one rank has of a parameter."""

    rank: int
    name: str
    kind: Kind
    weight: str | None = None
    """The parameter of the reference that it is, or is a part of."""
    error: float | None = None
    peers: Ranks = ()
    """Of a stray: those that have the reference's."""


def match_summaries(reference: SummaryRanks, candidate: SummaryRanks) -> list[SummaryHeld]:
    """Each parameter of each rank."""
    wholes = find_wholes({rank: one.parameters for rank, one in reference.items()})
    names = dict.fromkeys(name for one in candidate.values() for name in one.parameters)
    return [held for name in names for held in _match(name, candidate, wholes)]


def find_wholes(holders: Mapping[int, Mapping[str, Summary]]) -> dict[str, Summary]:
    """What all ranks together have of each name: the same, or parts one behind the other."""
    names = dict.fromkeys(name for held in holders.values() for name in held)
    found = {name: find_distinct([held[name] for held in holders.values() if name in held]) for name in names}
    return {name: parts[0] if len(parts) == 1 else join(parts) for name, parts in found.items()}


def find_distinct(parts: Sequence[Summary], tolerance: float = 0.0) -> list[Summary]:
    """Each content once."""
    found: list[Summary] = []
    for part in parts:
        if not any(part.mark == other.mark or (tolerance and part.is_like(other, tolerance)) for other in found):
            found.append(part)
    return found


def _match(name: str, candidate: SummaryRanks, wholes: Mapping[str, Summary]) -> Iterator[SummaryHeld]:
    held = {rank: one.parameters[name] for rank, one in candidate.items() if name in one.parameters}
    likely = sorted(wholes, key=lambda other: (other != name, not other.endswith(name)))
    whole = {rank: _find(summary, likely, wholes) for rank, summary in held.items()}
    yield from (SummaryHeld(rank, name, "whole", found) for rank, found in whole.items() if found is not None)
    rest = {rank: summary for rank, summary in held.items() if whole[rank] is None}
    known = tuple(rank for rank in held if rank not in rest)
    if not rest:
        return
    weight = None if known else _find(join(find_distinct(list(rest.values()))), likely, wholes)
    if weight is not None:
        yield from (SummaryHeld(rank, name, "part", weight) for rank in rest)
        return
    yield from _find_odd(name, rest, wholes, known)


def _find_odd(
    name: str, rest: Mapping[int, Summary], wholes: Mapping[str, Summary], known: Ranks
) -> Iterator[SummaryHeld]:
    """Where some ranks do not fit: those without which the others do, else all."""
    expected = wholes.get(name)
    for odd in find_distinct(list(rest.values())) if not known and expected is not None else ():
        others = find_distinct([summary for summary in rest.values() if summary.mark != odd.mark])
        if expected is not None and others and _is_same(join(others), expected):
            fitting = tuple(rank for rank, summary in rest.items() if summary.mark != odd.mark)
            for rank in rest:
                kind: Kind = "part" if rank in fitting else "stray"
                error = None if rank in fitting else _distance(odd, others[0])
                yield SummaryHeld(rank, name, kind, name, error, () if rank in fitting else fitting)
            return
    joined = join(find_distinct(list(rest.values())))
    for rank, summary in rest.items():
        if expected is not None and summary.shape == expected.shape:
            yield SummaryHeld(rank, name, "stray", name, _distance(summary, expected), known)
        elif expected is not None and joined.count == expected.count and not known:
            yield SummaryHeld(rank, name, "stray", name, _distance(joined, expected))
        else:
            yield SummaryHeld(rank, name, "unknown")


def _find(summary: Summary, names: Sequence[str], wholes: Mapping[str, Summary]) -> str | None:
    return next((name for name in names if _is_same(summary, wholes[name])), None)


def _is_same(first: Summary, second: Summary) -> bool:
    """Also where one is a copy of the other in a coarser dtype."""
    return first.is_like(second, _EXACT if first.unit == second.unit else max(first.unit, second.unit))


def _distance(first: Summary, second: Summary) -> float:
    """At least so much of its size do they differ by; a sketch estimates it."""
    norm = max(first.norm, second.norm) or 1.0
    if first.shape == second.shape and first.sketch is not None and second.sketch is not None:
        squares = [(one - two) ** 2 for one, two in zip(first.sketch, second.sketch, strict=True)]
        return math.sqrt(sum(squares) / len(squares)) / norm
    return abs(first.norm - second.norm) / norm
