"""One step of one process, executed again as a user asks for it: in which precision, how far, and where its results
go."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from tensorprobe.config.suggestion import suggest
from tensorprobe.errors import UsageError
from tensorprobe.replay.bit import BitJudge
from tensorprobe.replay.engine import Onlooker, Onlookers, Replay
from tensorprobe.replay.precision import Precision
from tensorprobe.replay.program import Program
from tensorprobe.replay.replayed_dump import ReplayedDump
from tensorprobe.replay.result import Execution, ReplayOptions


def execute(
    program: Program, device: torch.device, options: ReplayOptions, advance: Callable[[], None] = lambda: None
) -> Execution:
    """Run it, hold it against the recorded bits if it is to have them, and write it down if a folder was given."""
    limit = find_limit(program, options.until)
    onlookers: list[Onlooker] = []
    judge = BitJudge(program, device) if options.dtype == "recorded" else None
    if judge is not None:
        onlookers.append(judge)
    written = ReplayedDump(program, options.output, options.dtype) if options.output is not None else None
    if written is not None:
        written.open()
        onlookers.append(written)
    replay = Replay(program, Precision(options.dtype), device, Onlookers(*onlookers), advance, limit)
    replay.run()
    if written is not None:
        written.finish(limit, replay.coverage)
    folder = written.folder if written is not None else None
    return Execution(program.rank.name, replay.coverage, judge.report if judge is not None else None, folder)


def find_limit(program: Program, until: str | None) -> float:
    """The position of the last record that is wanted; UsageError if there is none of this name."""
    if until is None:
        return math.inf
    position = program.positions.get(until)
    if position is None:
        advice = suggest(until, program.positions)
        raise UsageError(f"{program.rank.name} has no record {until!r}: {advice or '`tensorprobe show` lists them.'}")
    return position
