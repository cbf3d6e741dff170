"""Which step and which process of the reference stands against which of the candidate."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tensorprobe.store.reader import Dump, RankDump, StepDump


@dataclass(frozen=True)
class RankPair:
    """One step of one process on both sides."""

    step: int | None
    rank: int | None
    reference: RankDump
    candidate: RankDump


@dataclass(frozen=True)
class LayoutPair:
    """One step of both runs, which share it out among processes in different ways."""

    step: int | None
    reference: StepDump
    candidate: StepDump

    @property
    def reference_name(self) -> str:
        return _name_ranks(self.reference)

    @property
    def candidate_name(self) -> str:
        return _name_ranks(self.candidate)


def _name_ranks(step: StepDump) -> str:
    """`step0/rank0…3`"""
    first = step.ranks[0].name
    return first if len(step.ranks) == 1 else f"{first}…{step.ranks[-1].name.rsplit('rank', 1)[-1]}"


def pair_layouts(reference: Dump, candidate: Dump) -> tuple[list[LayoutPair], list[str]]:
    """The steps of two runs with different numbers of processes, and what has no partner; nothing where both have the
    same number, or only one process of each was asked for."""
    problems: list[str] = []
    steps = _pair_steps(reference.steps, candidate.steps, problems)
    if not any(_has_other_layout(first, second) for first, second in steps):
        return [], []
    return [LayoutPair(first.number, first, second) for first, second in steps], problems


def pair_steps(reference: Dump, candidate: Dump) -> list[LayoutPair]:
    """The steps that both runs have, where the same number of processes made them, more than one, and all of them
    recorded."""
    steps = _pair_steps(reference.steps, candidate.steps, [])
    return [
        LayoutPair(first.number, first, second)
        for first, second in steps
        if len(first.ranks) == len(second.ranks) > 1 and all(map(_is_whole, (first, second)))
    ]


def _is_whole(step: StepDump) -> bool:
    return count_processes(step) in (None, len(step.ranks)) and {rank.rank for rank in step.ranks} == set(
        range(len(step.ranks))
    )


def _has_other_layout(reference: StepDump, candidate: StepDump) -> bool:
    if len(reference.ranks) == 1 and len(candidate.ranks) == 1:
        return False
    counts = count_processes(reference), count_processes(candidate)
    if None in counts:  # unless they say otherwise, ranks of one number belong together
        return not _pair_processes(reference, candidate, [])
    return counts[0] != counts[1]


def count_processes(step: StepDump) -> int | None:
    """Of the whole program, also where not all of them recorded; None where that is not known."""
    if len(step.ranks) == 1 and step.ranks[0].rank is None:
        return 1
    return max((size for rank in step.ranks if (size := rank.world_size) is not None), default=None)


def pair_ranks(reference: Dump, candidate: Dump) -> tuple[list[RankPair], list[str]]:
    """Steps and ranks by number, the only one of both sides by itself; and what has no partner, in words."""
    problems: list[str] = []
    pairs: list[RankPair] = []
    for first, second in _pair_steps(reference.steps, candidate.steps, problems):
        pairs += _pair_processes(first, second, problems)
    return pairs, problems


def _pair_steps(
    reference: tuple[StepDump, ...], candidate: tuple[StepDump, ...], problems: list[str]
) -> list[tuple[StepDump, StepDump]]:
    if len(reference) == 1 and len(candidate) == 1:
        return [(reference[0], candidate[0])]
    numbers = {step.number: step for step in candidate}
    found = [(step, numbers[step.number]) for step in reference if step.number in numbers]
    _note_lone("step", [step.number for step in reference], numbers, problems)
    return found


def _pair_processes(reference: StepDump, candidate: StepDump, problems: list[str]) -> list[RankPair]:
    if len(reference.ranks) == 1 and len(candidate.ranks) == 1:
        both = [(reference.ranks[0], candidate.ranks[0])]
    else:
        first, second = _by_number(reference), _by_number(candidate)
        both = [(rank, second[number]) for number, rank in first.items() if number in second]
        _note_lone(f"step {reference.number}: rank", first, second, problems)
    return [RankPair(reference.number, rank.rank, rank, partner) for rank, partner in both]


def _by_number(step: StepDump) -> dict[int | str, RankDump]:
    """Processes without a rank, msprobe's `proc123`, have no number: the first, the second …"""
    found: dict[int | str, RankDump] = {}
    for rank in step.ranks:
        without = sum(isinstance(key, str) for key in found)
        found[rank.rank if rank.rank is not None else f"process {without}"] = rank
    return found


def _note_lone(word: str, reference: Collection[object], candidate: Collection[object], problems: list[str]) -> None:
    for side, mine, theirs in (("reference", reference, candidate), ("candidate", candidate, reference)):
        lone = [str(number) for number in mine if number not in theirs]
        if lone:
            more = f" and {len(lone) - 8} more" if len(lone) > 8 else ""
            problems.append(f"{word} {', '.join(lone[:8])}{more}: only in the {side}, not compared")
