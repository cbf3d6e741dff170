"""The calls and tensors of a single run, numbered as its page has them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorprobe.report.page.column import NOTHING
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run
from tensorprobe.store.slot import TensorSlot


@dataclass
class RunTable:
    """Every call and every tensor of a run, numbered through all steps and ranks."""

    places: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    """The step of each place."""
    entries: list[tuple[int, Run, Call]] = field(default_factory=list)
    """The number of its place, the step that it is in, and the call."""
    values: list[tuple[int, TensorSlot]] = field(default_factory=list)
    """The number of its call, and the tensor: a row of the page each."""
    first_rows: list[int] = field(default_factory=list)
    _numbers: dict[tuple[int, str], int] = field(default_factory=dict)

    def add(self, run: Run) -> None:
        """All calls of one step of one process, in the order in which they ended."""
        place = len(self.places)
        self.places.append(run.rank.name)
        self.runs.append(run)
        for call in run.calls:
            number = self._numbers[place, call.name] = len(self.entries)
            self.entries.append((place, run, call))
            self.first_rows.append(len(self.values))
            self.values += [(number, slot) for slot in call.tensors]

    def find(self, place: int, name: str) -> int:
        """The number of a call; NOTHING if it was not recorded."""
        return self._numbers.get((place, name), NOTHING)

    def rows_of(self, number: int) -> range:
        """The rows of a call."""
        first = self.first_rows[number]
        return range(first, first + len(self.entries[number][2].tensors))
