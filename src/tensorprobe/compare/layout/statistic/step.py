"""One rank as its statistics tell it: its calls, and values that are known by their summaries."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tensorprobe.compare.layout.statistic.summary import Summary, read_summary
from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.errors import DumpError
from tensorprobe.replay.communication import read_communications
from tensorprobe.replay.parameter_gradient import parameter_gradients
from tensorprobe.replay.program import Operation, Program, read_program
from tensorprobe.replay.rank_step import RankStep
from tensorprobe.replay.result import Coverage
from tensorprobe.replay.true_step import Array, TrueCall, TrueStep, TrueValue
from tensorprobe.run.leaf import Leaf
from tensorprobe.store.reader import RankDump

Place = tuple[str, str]
"""A call or a parameter, and the place there."""
Kind = tuple[str | None, str]


def kind_of(call: TrueCall) -> Kind:
    return call.module_path, word_of(call)


@dataclass(eq=False)
class SummaryRank:
    """One rank. The arrays of its values have the right size, and nothing in them; that of a single number is it."""

    rank: RankStep
    summaries: dict[int, Summary] = field(default_factory=dict)
    """Of floating-point values, by their numbers."""
    places: dict[int, Place] = field(default_factory=dict)
    """Where each value was seen first."""
    at: dict[Place, int] = field(default_factory=dict)
    parameters: dict[str, Summary] = field(default_factory=dict)
    gradients: dict[str, Summary] = field(default_factory=dict)
    """As the program leaves them: after what was written to them later."""
    dtypes: set[str] = field(default_factory=set)

    @cached_property
    def alike(self) -> Mapping[Kind, list[str]]:
        """The calls that do the same in the same module, in their order."""
        found: dict[Kind, list[str]] = defaultdict(list)
        for call in self.rank.step.calls.values():
            found[kind_of(call)].append(call.name)
        return found

    def find(self, place: Place) -> Summary | None:
        number = self.at.get(place)
        return None if number is None else self.summaries[number]


SummaryRanks = Mapping[int, SummaryRank]


def read_summary_ranks(ranks: Sequence[RankDump]) -> dict[int, SummaryRank]:
    found = {rank.rank or 0: _Reader(read_program(rank), rank.rank or 0).read() for rank in ranks}
    if len(found) < len(ranks):
        raise DumpError(f"{ranks[0].folder.parent} has two processes of one rank: they cannot be taken together.")
    return found


class _Reader:
    """A value is one content: what has the same statistics is one, whatever tensor it is in."""

    def __init__(self, program: Program, rank: int) -> None:
        self._program = program
        self._values: list[TrueValue] = []
        self._calls: dict[str, TrueCall] = {}
        self._numbers: dict[object, int] = {}
        name = f"step{program.rank.step or 0}/rank{rank}"
        communications = {one.operation.name: one for one in read_communications(program)}
        step = TrueStep(name, self._calls, self._values, Coverage())
        self._found = SummaryRank(RankStep(rank, step, communications))

    def read(self) -> SummaryRank:
        for position, operation in enumerate(self._iter_calls()):
            self._add(position, operation)
        for root in (root for one in self._program.backward_passes for root in one.roots if root is not None):
            self._mark_root(root)
        self._read_parameters()
        self._found.gradients.update(self._iter_gradients())
        coverage = self._found.rank.step.coverage
        coverage.call_count = coverage.replayed = len(self._calls)
        return self._found

    def _iter_calls(self) -> Iterator[Operation]:
        return (one for one in self._program.endings() if not one.is_module and not one.is_part)

    def _add(self, position: int, operation: Operation) -> None:
        inside = {
            f"inside.{number}": leaf
            for number, leaf in enumerate(leaf for child in operation.children for leaf in child.outputs)
        }
        given = {leaf.slot: leaf for leaf in operation.operands} | inside
        call = TrueCall(
            operation.name,
            position,
            operation.framework,
            operation.prefix,
            operation.op,
            operation.call.module_path,
            operation.call.caller,
            dict(self._number_all(given, None)),
        )
        self._calls[call.name] = call
        call.outputs.update(self._number_all({leaf.slot: leaf for leaf in operation.outputs}, call.name))

    def _number_all(self, leaves: Mapping[str, Leaf], maker: str | None) -> Iterator[tuple[str, int]]:
        for slot, leaf in leaves.items():
            summary = read_summary(leaf)
            if summary is None or not leaf.is_floating:
                continue
            number = self._numbers.setdefault(summary.mark, len(self._values))
            if number == len(self._values):
                self._values.append(TrueValue(number, _stand_in(summary), leaf.dtype, maker, slot, leaf.parameter))
                self._found.summaries[number] = summary
                self._found.places[number] = (maker or leaf.parameter or "", slot)
            self._found.at.setdefault((maker or leaf.parameter or "", slot), number)
            self._found.dtypes.add(leaf.dtype)
            yield slot, number

    def _mark_root(self, root: Leaf) -> None:
        call = next((one for one in self._iter_calls() if one.name == root.source), None)
        for leaf in call.outputs if call is not None else ():
            if leaf.tensor != root.tensor:
                continue
            summary = read_summary(leaf)
            if summary is not None and summary.mark in self._numbers:
                self._values[self._numbers[summary.mark]].is_root = True
            elif leaf.element_count == 1 and leaf.is_floating and not leaf.is_undefined:  # NaN or Inf: no other loss
                number = len(self._values)
                self._found.summaries[number] = Summary(leaf.stored_shape, math.nan, math.nan, math.nan, math.nan)
                self._found.places[number] = (root.source or "", leaf.slot)
                content = np.broadcast_to(math.nan, leaf.stored_shape)
                self._values.append(TrueValue(number, content, leaf.dtype, root.source, leaf.slot, is_root=True))

    def _read_parameters(self) -> None:
        """As they lie on this rank: a distributed one by its part, as modules have it."""
        leaves = [leaf for one in self._program.walk() for leaf in (*one.operands, *one.state_leaves)]
        for leaf in sorted(leaves, key=lambda leaf: leaf.sharding is None):
            summary = read_summary(leaf)
            if leaf.parameter is not None and summary is not None and leaf.is_floating:
                self._found.parameters.setdefault(leaf.parameter, summary)

    def _iter_gradients(self) -> Iterator[tuple[str, Summary]]:
        last = {
            leaf.tensor: leaf
            for one in self._program.endings()
            if not one.is_module
            for leaf in one.outputs
            if leaf.tensor is not None
        }
        for name, known in parameter_gradients(self._program):
            tensor = known.leaf.tensor
            summary = read_summary(last.get(tensor, known.leaf) if tensor is not None else known.leaf)
            if summary is not None:
                yield name, summary


def _stand_in(summary: Summary) -> Array:
    content = summary.mean if summary.count == 1 else 0.0
    return np.broadcast_to(np.float64(content), summary.shape)
