"""What a server shows: the data of a page, and what stands behind each of its rows and calls.

A request names a row or a call by its number; which file that is was decided by the page, never by the request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from tensorprobe.compare.step import pair_ranks
from tensorprobe.errors import DumpError, TensorprobeError
from tensorprobe.foreign_text import clean
from tensorprobe.model.name import FORWARD
from tensorprobe.report.page.detail import describe_array, describe_pair
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run
from tensorprobe.serve.tensor_source import Array, TensorSource
from tensorprobe.store.frame import describe_frame
from tensorprobe.store.reader import RankDump, open_dump

Page = dict[str, Any]
Sides = dict[str, dict[str, Any] | None]

_SIDES = ("reference", "candidate")
_JOINT = " + "
"""Between the names of several calls in one cell of a page."""


class Shown(Protocol):
    """A page and what is behind it."""

    page: Page

    def describe_row(self, row: int) -> dict[str, Any]:
        """The tensors of a row, reduced; where there are none, the reason in words."""

    def describe_call(self, call: int) -> Sides:
        """Where a call was made, on both sides."""

    def close(self) -> None:
        """Remove what was computed for it."""


class ShownRun:
    """A single run."""

    def __init__(self, page: Page, source: TensorSource) -> None:
        self.page = page
        self._source = source
        self._ranks = {rank.name: rank for rank in source.dump.ranks()}

    def describe_row(self, row: int) -> dict[str, Any]:
        """The tensor of a row."""
        rows = self.page["rows"]
        call, slot = self._name(rows["call"][row]), _text(self.page, rows["slot_s"][row])
        try:
            return describe_array(self._source.open_value(self._rank(rows["place"][row]), _join(call, slot)))
        except TensorprobeError as error:
            return _describe_absence(error)

    def describe_call(self, call: int) -> Sides:
        """Where the call was made: the run is the only side."""
        place = self.page["calls"]["place"][call]
        run = self._source.read(self._rank(place))
        return {"reference": _describe_side(run, self._name(call)), "candidate": None}

    def close(self) -> None:
        """Remove what was computed for it."""
        self._source.close()

    def _name(self, call: int) -> str:
        return _text(self.page, self.page["calls"]["name_s"][call])

    def _rank(self, place: int) -> RankDump:
        return self._ranks[self.page["places"][place]]


class ShownComparison:
    """Two runs. A dump that is gone leaves the page, and the reason where its tensors would be."""

    def __init__(self, page: Page, folder: Path | None = None) -> None:
        self.page = page
        self._sources: dict[str, TensorSource | TensorprobeError] = {
            side: _open_source(page[side], folder) for side in _SIDES
        }
        self._ranks = self._pair_ranks()

    def describe_row(self, row: int) -> dict[str, Any]:
        """The pair of tensors of a row."""
        rows = self.page["rows"]
        names = {side: _text(self.page, _cell(rows, f"{side}_name_s", row)) for side in _SIDES}
        try:
            for side, name in names.items():
                if not name:
                    raise DumpError(f"The {side} has nothing that stands against it.")
            return describe_pair(*(self._open(side, name, rows["place"][row]) for side, name in names.items()))
        except TensorprobeError as error:
            return _describe_absence(error)

    def describe_call(self, call: int) -> Sides:
        """Where the calls of both sides were made."""
        return {side: self._describe_side(side, call) for side in _SIDES}

    def close(self) -> None:
        """Remove what was computed for it."""
        for source in self._sources.values():
            if isinstance(source, TensorSource):
                source.close()

    def _open(self, side: str, name: str, place: int) -> Array:
        source, rank = self._find(side, place)
        return source.open_value(rank, name)

    def _find(self, side: str, place: int) -> tuple[TensorSource, RankDump]:
        source = self._sources[side]
        if isinstance(source, TensorprobeError):
            raise source
        rank = self._ranks.get((side, self.page["places"][place]))
        if rank is None:
            raise DumpError(f"{self.page[side]} no longer has what {self.page['places'][place]} was compared with.")
        return source, rank

    def _pair_ranks(self) -> dict[tuple[str, str], RankDump]:
        """Both sides' ranks by the name of the reference's, which is that of the place."""
        reference, candidate = self._sources["reference"], self._sources["candidate"]
        if isinstance(reference, TensorSource) and isinstance(candidate, TensorSource):
            pairs, _ = pair_ranks(reference.dump, candidate.dump)
            first = {("reference", pair.reference.name): pair.reference for pair in pairs}
            return first | {("candidate", pair.reference.name): pair.candidate for pair in pairs}
        sources = {side: source for side, source in self._sources.items() if isinstance(source, TensorSource)}
        return {(side, rank.name): rank for side, source in sources.items() for rank in source.dump.ranks()}

    def _describe_side(self, side: str, call: int) -> dict[str, Any] | None:
        calls = self.page["calls"]
        names = _text(self.page, calls[f"{side}_s"][call]).split(_JOINT)
        try:
            source, rank = self._find(side, calls["place"][call])
            return _describe_side(source.read(rank), *names)
        except TensorprobeError:
            return None  # the page still has the lines that it was made with


def _open_source(path: str, folder: Path | None) -> TensorSource | TensorprobeError:
    """The dump of a side; one that was named relative to another folder is looked for beside the comparison too."""
    try:
        return TensorSource(open_dump(path))
    except DumpError as error:
        if folder is not None and not Path(path).is_absolute() and (folder / path).exists():
            return TensorSource(open_dump(folder / path))
        return error


def _describe_absence(error: TensorprobeError) -> dict[str, Any]:
    return {"histogram": None, "heat": None, "metrics": {}, "reason": clean(str(error))}


def _describe_side(run: Run, *names: str) -> dict[str, Any] | None:
    from tensorprobe.report.page.source_line import find_source

    calls = [run.by_name[name] for name in names if name in run.by_name]
    if not calls:
        return None
    made = _find_recorded(run, calls[0])
    location = run.location(made)
    return {
        "calls": [call.name for call in calls],
        "module": run.context_path(calls[0]),
        "location": describe_frame(location) if location else None,
        "source": find_source(location),
        "stack": [describe_frame(frame) for frame in run.rank.stack(made.name)],
    }


def _find_recorded(run: Run, call: Call) -> Call:
    """The call whose stack tells where it was made: a backward call's forward, where it has none of its own."""
    forward = None if run.rank.stack(call.name) else run.by_name.get(call.in_direction(FORWARD))
    return forward or call


def _cell(columns: dict[str, Any], name: str, row: int) -> int:
    """A column that is empty in all rows is left out of a page."""
    return int(columns[name][row]) if name in columns else -1


def _text(page: Page, number: int) -> str:
    return "" if number < 0 else str(page["strings"][number])


def _join(call: str, slot: str) -> str:
    return f"{call}.{slot}" if slot else call
