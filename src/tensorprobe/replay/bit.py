"""Does a replay in the recorded precision give every recorded bit again? What does not was not recorded as it was
computed, or the framework does not repeat itself."""

from __future__ import annotations

import math

import torch

from tensorprobe.capture.torch.reducer import Reducer
from tensorprobe.replay.argument import Leaf
from tensorprobe.replay.engine import Onlooker
from tensorprobe.replay.invocation import Tensors
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors, is_bit_equal
from tensorprobe.replay.result import BitReport

_SUM_ORDER = 1e-6
"""A norm is a sum, and its last digits depend on the order in which its elements lie in memory."""


class BitJudge(Onlooker):
    """Holds each floating value of a replay against the recorded one: by its bits where there is a file of it, else by
    its statistics."""

    def __init__(self, program: Program, device: torch.device) -> None:
        self._program = program
        self._recorded = RecordedTensors(program.rank, device)
        self._reducer = Reducer()
        self.report = BitReport(program.rank.name)

    def see_results(self, operation: Operation, tensors: Tensors) -> None:
        for leaf in operation.outputs:
            if leaf.slot in tensors:
                self._hold(operation.name, leaf, tensors[leaf.slot])

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        leaf = self._program.gradient_leaves(record).get(slot)
        if leaf is not None:
            self._hold(record, leaf, gradient)

    def _hold(self, record: str, leaf: Leaf, tensor: torch.Tensor) -> None:
        if not leaf.is_floating:
            return
        try:
            recorded = self._recorded.load(leaf)
        except MissingContentError:
            is_equal = self._has_recorded_statistics(leaf, tensor)
        else:
            is_equal = is_bit_equal(recorded, tensor)
        if is_equal is None:
            self.report.unknown.append((record, leaf.slot))
        elif is_equal:
            self.report.equal_count += 1
        else:
            self.report.different.append((record, leaf.slot))

    def _has_recorded_statistics(self, leaf: Leaf, tensor: torch.Tensor) -> bool | None:
        if not isinstance(leaf.fields.get("Norm"), (int, float)):
            return None
        stats = self._reducer.reduce(tensor.detach())
        self._reducer.fetch()
        if not math.isclose(float(stats.norm or 0), float(leaf.fields["Norm"]), rel_tol=_SUM_ORDER):
            return False
        found = (stats.max, stats.min)
        told = tuple(leaf.fields.get(name) for name in ("Max", "Min"))
        return all(a == b or (a != a and b != b) for a, b in zip(found, told, strict=True))
