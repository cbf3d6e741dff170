"""Everything `show` says about one step of one process, as plain data; text and JSON only lay it out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorprobe.errors import DumpError
from tensorprobe.model.name import FORWARD
from tensorprobe.report.nonfinite import NonFinite, find_non_finite
from tensorprobe.report.tree import Row, build_rows, build_saved_rows, filter_rows, limit_depth
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run, read_run
from tensorprobe.store import stored_file
from tensorprobe.store.frame import describe_frame
from tensorprobe.store.reader import RankDump
from tensorprobe.store.slot import TensorSlot

OnRecord = Callable[[], None]

_LAST_SCALARS = 3


@dataclass(frozen=True)
class ShowOptions:
    """What of a dump is shown; None is no limit."""

    depth: int | None = None
    filter: str | None = None


@dataclass(frozen=True)
class Gradient:
    """The gradient of one parameter."""

    parameter: str
    norm: float
    is_finite: bool
    """False: the norm is only that of the elements that are numbers."""
    record: str
    """The call that it stands in."""


@dataclass(frozen=True)
class RankReport:
    """One step of one process."""

    name: str
    folder: str
    step: int | None
    rank: int | None
    header: Mapping[str, Any]
    run: Mapping[str, Any]
    is_complete: bool
    problems: tuple[str, ...]
    record_count: int
    saved_count: int
    non_finite: NonFinite
    failed: tuple[Call, ...]
    scalars: tuple[tuple[str, float], ...]
    """The last numbers that the forward pass computed: the loss is most likely among them."""
    gradients: tuple[Gradient, ...]
    rows: tuple[Row, ...]
    saved_rows: tuple[Row, ...]
    locations: Mapping[str, str]
    """The source line of the records that are worth a look."""
    error: str | None = None
    """Why it could not be read; then all else is empty."""

    @property
    def coverage(self) -> Mapping[str, Any] | None:
        """None when the dump does not state it."""
        coverage = self.run.get("coverage")
        return coverage if isinstance(coverage, dict) else None

    @property
    def is_recovered(self) -> bool:
        return self.run.get("recovered") is True

    @property
    def ending(self) -> str | None:
        """The exception or the signal that ended the run in the middle of the step; None if nobody knows of one."""
        ending = self.run.get("ended")
        return ending if isinstance(ending, str) else None


def read_rank_report(rank: RankDump, options: ShowOptions, on_record: OnRecord = lambda: None) -> RankReport:
    """Like `build_rank_report`, but a rank that cannot be read is a report that says so, and not the end."""
    try:
        return build_rank_report(rank, options, on_record)
    except DumpError as error:
        nothing = RankDump(rank.folder, rank.root, rank.step, rank.rank, None, None)
        return replace(build_rank_report(nothing, options), is_complete=False, problems=(), error=str(error))


def build_rank_report(
    rank: RankDump, options: ShowOptions | None = None, on_record: OnRecord = lambda: None
) -> RankReport:
    """Read one step of one process. `on_record` is told of each record, for a progress bar."""
    return report_run(read_run(rank, on_record), options or ShowOptions())


def report_run(run: Run, options: ShowOptions) -> RankReport:
    """The same of a step that has been read."""
    rank = run.rank
    calls, saved = run.calls[: rank.record_count], run.calls[rank.record_count :]
    non_finite = find_non_finite(run.calls, rank.parents)
    failed = tuple(call for call in calls if call.failed)
    rows = _select(build_rows(calls, rank.parents), options)
    notable = {*(found.call.name for found in non_finite.calls), *(call.name for call in failed)}
    if options.filter:
        notable |= {row.record for row in rows}
    return RankReport(
        name=rank.name,
        folder=stored_file.show(rank.folder),
        step=rank.step,
        rank=rank.rank,
        header=rank.header,
        run=rank.run,
        is_complete=rank.is_complete,
        problems=rank.problems,
        record_count=len(calls),
        saved_count=len(saved),
        non_finite=non_finite,
        failed=failed,
        scalars=_find_scalars(calls),
        gradients=tuple(_iter_gradients(calls)),
        rows=tuple(rows),
        saved_rows=tuple(_select(build_saved_rows(saved), options)),
        locations=_find_locations(rank, notable),
    )


def _select(rows: list[Row], options: ShowOptions) -> list[Row]:
    if options.filter:
        rows = filter_rows(rows, options.filter)
    return rows if options.depth is None else limit_depth(rows, options.depth)


def _find_locations(rank: RankDump, records: set[str]) -> dict[str, str]:
    found = {record: describe_frame(frames[0]) for record in records if (frames := rank.stack(record))}
    return {record: location for record, location in found.items() if location}


def _find_scalars(calls: Sequence[Call]) -> tuple[tuple[str, float], ...]:
    found: list[tuple[str, float]] = []
    for call in calls:
        if call.kind == "api" and call.phase == FORWARD and not call.caller:
            values = [_scalar(slot) for slot in call.results if isinstance(slot, TensorSlot) and slot.shape == ()]
            found += [(call.name, value) for value in values if value is not None]
    return tuple(found[-_LAST_SCALARS:])


def _scalar(slot: TensorSlot) -> float | None:
    if slot.is_undefined:
        return None
    if slot.has_nan:
        return math.nan
    return slot.max if isinstance(slot.max, float) else None


def _iter_gradients(calls: Sequence[Call]) -> Iterator[Gradient]:
    for call in calls:
        if call.kind == "parameters_grad":
            for slot in call.tensors:
                if isinstance(slot.norm, float) and not slot.is_undefined:
                    name = f"{call.path}.{slot.slot}" if call.path else slot.slot
                    yield Gradient(name, slot.norm, not (slot.has_nan or slot.has_inf), call.name)
