"""Two layouts that mean the same, and what was recorded of them: a call whose result is not what it means, on a rank.

Each call by itself is looked at only where a recorded result is farther from its truth than rounding explains: that
takes longer than all else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tensorprobe.compare.layout.pool import Steps
from tensorprobe.compare.layout.statistic.judge import ROOM
from tensorprobe.compare.truth.judgement import SIDES
from tensorprobe.compare.truth.recorded_error import iter_results, load_result
from tensorprobe.model.name import parse_name
from tensorprobe.replay import MemoryLimit, find_device, limit_memory
from tensorprobe.replay.program import read_program
from tensorprobe.replay.rank_step import RankStep
from tensorprobe.replay.result import Finding
from tensorprobe.replay.truth import find_truths
from tensorprobe.run.step import Run, read_run
from tensorprobe.store.reader import RankDump


@dataclass(frozen=True)
class RankFinding:
    """Something that is wrong on one rank of one side, and not on the other side."""

    side: str
    rank: int
    finding: Finding


def find_wrong_results(steps: tuple[Steps, Steps], ranks: tuple[Sequence[RankDump], ...]) -> list[RankFinding]:
    """Of both sides, the candidate first; each in the order of its calls."""
    is_off = [
        any(_is_off(steps[side][rank.rank or 0], read_run(rank)) for rank in ranks[side]) for side in range(len(SIDES))
    ]
    if not any(is_off):
        return []
    found = [list(_iter_findings(side, one)) for side, one in zip(SIDES, ranks, strict=True)]
    known = [{_kind_of(one.finding) for one in own} for own in found]
    both = known[0] & known[1]
    return [one for own in reversed(found) for one in own if _kind_of(one.finding) not in both]


def _is_off(step: RankStep, run: Run) -> bool:
    """Is a recorded result farther from its truth than rounding explains, as a whole or where it is largest?"""
    room = max((ROOM.get(value.dtype, 0.0) for value in step.step.values if value.is_floating), default=0.0)
    for _, slot, value in iter_results(step.step, run):
        recorded = load_result(run, slot, value.array)
        if recorded is None:
            continue
        with np.errstate(all="ignore"):
            difference = np.abs(recorded - value.array)
            sizes = np.linalg.norm(value.array), np.abs(value.array).max(initial=0.0)
            distances = np.linalg.norm(difference), difference.max(initial=0.0)
        is_near = all(one <= room * size + 1e-30 for one, size in zip(distances, sizes, strict=True))  # NaN is not
        if not is_near and np.isfinite(value.array).all():
            return True
    return False


def _iter_findings(side: str, ranks: Sequence[RankDump]) -> Iterator[RankFinding]:
    device = find_device("cpu")
    programs = [read_program(rank) for rank in ranks]
    limit_memory(programs, device, MemoryLimit())
    for program, truth in zip(programs, find_truths(programs, device), strict=True):
        yield from (RankFinding(side, program.rank.rank or 0, one) for one in truth.findings)


def _kind_of(finding: Finding) -> tuple[str, str]:
    """What is wrong, with what operation: the same kernel on both sides is no difference."""
    try:
        parsed = parse_name(finding.record)
    except ValueError:
        return finding.kind, finding.record
    return finding.kind, getattr(parsed, "name", finding.record)
