"""What is said of a whole comparison, as plain data: text, XLSX and JSON only lay it out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tensorprobe.compare.match.alignment import Unpaired
from tensorprobe.compare.result import (
    ROLES,
    STATUSES,
    CallResult,
    Comparison,
    Coverage,
    RankResult,
    ValuePair,
    Verdict,
)
from tensorprobe.compare.row import describe_unpaired, safe_repr
from tensorprobe.compare.tally import Tally

BASIS_WORDS = {
    "tensor": "element by element",
    "statistics": "by their statistics",
    "checksum": "by their checksums",
    "structure": "by shape and dtype only",
}


@dataclass(frozen=True)
class Circumstance:
    """One setting in which the runs differ, and in which steps and ranks, where that is not all of them."""

    key: str
    reference: Any
    candidate: Any
    places: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """A call besides the one of the verdict that is a source, or that a difference entered by, or that drifts."""

    place: str
    """`step0/rank3`"""
    call: CallResult
    worst: ValuePair | None
    """The value that is farthest beyond its tolerance."""


@dataclass(frozen=True)
class UnpairedCall:
    """A call that only one side makes."""

    place: str
    side: str
    found: Unpaired

    @property
    def description(self) -> str:
        return describe_unpaired(self.found, self.side)


@dataclass(frozen=True)
class Matrix:
    """The verdict of every step and rank."""

    steps: tuple[int | None, ...]
    ranks: tuple[str, ...]
    kinds: dict[tuple[int | None, str], str]

    def kind(self, step: int | None, rank: str) -> str | None:
        """None where one of the two runs has no such step and rank."""
        return self.kinds.get((step, rank))


@dataclass(frozen=True)
class Summary:
    """All that is said about a comparison, beside its rows: made once, laid out many times."""

    comparison: Comparison
    reference: str
    candidate: str
    verdict: Verdict
    verdict_places: tuple[str, str]
    """The step and rank of the verdict in both runs, `step0/rank3`; empty where it is not of one of them."""
    circumstances: tuple[Circumstance, ...]
    notes: tuple[str, ...]
    """What else of the circumstances may make the runs differ."""
    sources: tuple[Source, ...]
    tensors: dict[str, int]
    """How many tensors of the users' own calls have which status; those of which there are none are left out."""
    arguments: dict[str, int]
    """The same for what is no tensor."""
    calls: dict[str, int]
    """How many calls have which role; the users' own ones."""
    framework_calls: dict[str, int]
    """Those that the framework made itself, such as an optimizer's: they are kept out of the verdict."""
    bases: dict[str, int]
    coverage: Coverage
    obstacles: dict[str, int]
    """Why tensors of paired calls could not be compared, the most frequent reason first."""
    fallbacks: dict[str, int]
    """Why tensors were compared only by what was recorded of them, although both were saved."""
    unpaired: tuple[UnpairedCall, ...]
    idle: tuple[UnpairedCall, ...]
    """Besides those: calls that need no partner, because they change nothing."""
    framework_unpaired: tuple[UnpairedCall, ...]
    """Besides those: calls that the framework made itself, such as an optimizer's."""
    matrix: Matrix
    problems: tuple[str, ...]
    cut_short: tuple[str, ...]
    """Steps and ranks that were compared only up to their first source."""

    @property
    def has_several_ranks(self) -> bool:
        return len(self.matrix.kinds) > 1


def summarize(comparison: Comparison) -> Summary:
    """Everything that is said about a comparison, beside its rows."""
    ranks = comparison.ranks
    unpaired = list(_iter_unpaired(ranks))
    counted = Tally()
    for rank in ranks:
        counted.add(rank.tally)
    return Summary(
        comparison=comparison,
        reference=comparison.reference,
        candidate=comparison.candidate,
        verdict=comparison.verdict,
        verdict_places=_find_places(comparison),
        circumstances=_merge_circumstances(ranks),
        notes=tuple(dict.fromkeys(note for rank in ranks for note in rank.notes)),
        sources=tuple(_iter_sources(comparison)),
        tensors=_in_order(STATUSES, counted.own_tensors),
        arguments=_in_order(STATUSES, counted.own_arguments),
        calls=_in_order(ROLES, counted.own_roles),
        framework_calls=_in_order(ROLES, counted.framework_roles),
        bases=_in_order(BASIS_WORDS, sum((rank.bases for rank in ranks), Counter[str]())),
        coverage=add_coverage(rank.coverage for rank in ranks),
        obstacles=dict(counted.obstacles.most_common()),
        fallbacks=dict(counted.fallbacks.most_common()),
        unpaired=tuple(one for one in unpaired if one.found.call.caller is None and not one.found.is_idle),
        idle=tuple(one for one in unpaired if one.found.call.caller is None and one.found.is_idle),
        framework_unpaired=tuple(one for one in unpaired if one.found.call.caller is not None),
        matrix=_build_matrix(ranks),
        problems=(*comparison.problems, *(problem for rank in ranks for problem in rank.problems)),
        cut_short=tuple(rank.reference_name for rank in ranks if rank.is_cut_short),
    )


def add_coverage(parts: Iterable[Coverage]) -> Coverage:
    """That of all steps and ranks together."""
    listed = list(parts)
    counts = (
        *("reference_calls", "candidate_calls", "paired_reference", "paired_candidate"),
        *("idle_reference", "idle_candidate", "compared_values", "uncompared_values", "values"),
    )
    return Coverage(
        **{name: sum(getattr(part, name) for part in listed) for name in counts},
        unseen_reference=_add(part.unseen_reference for part in listed),
        unseen_candidate=_add(part.unseen_candidate for part in listed),
    )


def find_lowest_coverage(comparison: Comparison) -> tuple[str, float]:
    """The step and rank of which the smallest share of calls has a partner; one good rank must not hide a bad one."""
    shares = [(rank.coverage.share, rank.reference_name) for rank in comparison.ranks]
    share, name = min(shares, default=(0.0, comparison.reference))
    return name, share


def find_lowest_value_coverage(comparison: Comparison) -> tuple[str, float]:
    """The same for the values of the calls that have a partner: the share that was compared."""
    shares = [(rank.coverage.value_share, rank.reference_name) for rank in comparison.ranks]
    share, name = min(shares, default=(0.0, comparison.reference))
    return name, share


def find_worst(call: CallResult) -> ValuePair | None:
    """The value that is farthest beyond its tolerance; among those that speak for the role of the call, if it can."""
    measured = [value for value in call.values if value.error is not None]
    wanted = [value for value in measured if value.is_input == (call.role == "entered") and value.is_bad]
    return max(wanted or measured, key=_excess, default=None)


def _excess(value: ValuePair) -> tuple[float, float]:
    error = value.error if value.error is not None and value.error == value.error else float("inf")
    return (error / value.tolerance if value.tolerance else error, error)


def _in_order(order: Iterable[str], counts: Counter[str]) -> dict[str, int]:
    """How often each word occurs, in the order that is usual for them."""
    total = dict(counts)
    return {word: total.pop(word) for word in order if word in total} | total


def _add(counts: Iterable[Any]) -> Counter[str]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return total


def _find_places(comparison: Comparison) -> tuple[str, str]:
    """A single step of one run may stand against another step of the other."""
    for rank in comparison.ranks:
        if rank.reference_name == comparison.verdict.rank_name:
            return rank.reference_name, rank.candidate_name
    return "", ""


def _merge_circumstances(ranks: tuple[RankResult, ...]) -> tuple[Circumstance, ...]:
    """The same difference on every rank is one; the values may be lists, so they are told apart by their text."""
    found: dict[tuple[str, str, str], tuple[str, Any, Any]] = {}
    places: dict[tuple[str, str, str], list[str]] = {}
    for rank in ranks:
        for key, reference, candidate in rank.circumstances:
            same = (key, safe_repr(reference), safe_repr(candidate))
            found.setdefault(same, (key, reference, candidate))
            places.setdefault(same, []).append(rank.reference_name)
    return tuple(
        Circumstance(*found[same], tuple(names) if len(names) < len(ranks) else ()) for same, names in places.items()
    )


def _iter_sources(comparison: Comparison) -> Iterator[Source]:
    """Those of the verdict's own step and rank first; then the others, each with its own verdict's call before it."""
    first = comparison.verdict.call
    ranks = sorted(comparison.ranks, key=lambda rank: rank.reference_name != comparison.verdict.rank_name)
    for rank in ranks:
        own = rank.verdict.call
        named = [own] if own is not None and own.role != "propagated" else []
        for call in (*named, *(one for one in rank.others if one is not own)):
            is_told = first is not None and rank is ranks[0] and _shares_record(call, first)
            if not is_told:
                yield Source(rank.reference_name, call, find_worst(call))


def _shares_record(call: CallResult, other: CallResult) -> bool:
    """What stands in a verdict is not told again beside it, paired otherwise."""
    return bool({*call.reference} & {*other.reference} or {*call.candidate} & {*other.candidate})


def _iter_unpaired(ranks: tuple[RankResult, ...]) -> Iterator[UnpairedCall]:
    for rank in ranks:
        for side, unpaired in (("reference", rank.only_reference), ("candidate", rank.only_candidate)):
            for found in unpaired:
                yield UnpairedCall(rank.reference_name, side, found)


def _build_matrix(ranks: tuple[RankResult, ...]) -> Matrix:
    kinds = {(rank.step, rank.reference_name.rpartition("/")[2]): rank.verdict.kind for rank in ranks}
    steps = sorted({step for step, _ in kinds}, key=lambda step: -1 if step is None else step)
    names = sorted({name for _, name in kinds}, key=lambda name: (len(name), name))  # rank10 follows rank9
    return Matrix(tuple(steps), tuple(names), dict(kinds))
