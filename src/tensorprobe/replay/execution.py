"""One step of one process, executed again as a user asks for it: in which precision, how far, and where its results
go."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from tensorprobe.config.suggestion import suggest
from tensorprobe.errors import UsageError
from tensorprobe.replay.bit import BitJudge
from tensorprobe.replay.engine import Replay
from tensorprobe.replay.joint import run_jointly
from tensorprobe.replay.onlooker import Onlookers
from tensorprobe.replay.precision import Precision
from tensorprobe.replay.program import Program
from tensorprobe.replay.replayed_dump import ReplayedDump
from tensorprobe.replay.result import Execution, ReplayOptions


def execute(
    programs: Sequence[Program],
    device: torch.device,
    options: ReplayOptions,
    advance: Callable[[], None] = lambda: None,
) -> list[Execution]:
    """Run the programs of ranks that communicate, hold them against the recorded bits if they are to have them, and
    write them down if a folder was given."""
    running = [_Running(program, device, options, advance) for program in programs]
    with _mkldnn(is_enabled=all(map(uses_mkldnn, programs))):
        run_jointly([one.replay for one in running])
    return [one.finish() for one in running]


@contextmanager
def _mkldnn(*, is_enabled: bool) -> Iterator[None]:
    """Only whether it is used: torch's own `mkldnn.flags` sets more than that, and warns of it."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(is_enabled)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def uses_mkldnn(program: Program) -> bool:
    """Did the run use this library? Without it torch has other kernels for a CPU, which round otherwise."""
    settings = program.rank.run.get("settings")
    return not isinstance(settings, dict) or settings.get("mkldnn") is not False


class _Running:
    """One rank while it is executed again."""

    def __init__(
        self, program: Program, device: torch.device, options: ReplayOptions, advance: Callable[[], None]
    ) -> None:
        self._limit = find_limit(program, options.until)
        self._judge = BitJudge(program, device, self._limit) if options.dtype == "recorded" else None
        self._written = ReplayedDump(program, options.output, options.dtype) if options.output is not None else None
        if self._written is not None:
            self._written.open()
        onlookers = Onlookers(*(one for one in (self._judge, self._written) if one is not None))
        self.replay = Replay(program, Precision(options.dtype), device, onlookers, advance, self._limit)

    def finish(self) -> Execution:
        coverage = self.replay.coverage
        if self._written is not None:
            self._written.finish(self._limit, coverage)
        folder = self._written.folder if self._written is not None else None
        bits = self._judge.report if self._judge is not None else None
        return Execution(self.replay.program.rank.name, coverage, bits, folder)


def find_limit(program: Program, until: str | None) -> float:
    """The position of the last record that is wanted; UsageError if there is none of this name."""
    if until is None:
        return math.inf
    call = program.run.by_name.get(until)
    if call is None:
        advice = suggest(until, program.run.by_name)
        raise UsageError(f"{program.rank.name} has no record {until!r}: {advice or '`tensorprobe show` lists them.'}")
    return call.position
