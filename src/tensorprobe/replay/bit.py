"""Does a replay in the recorded precision give every recorded bit again? What does not was not recorded as it was
computed, or the framework does not repeat itself."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from tensorprobe.capture.torch.reducer import Reducer
from tensorprobe.replay.invocation import Tensors
from tensorprobe.replay.onlooker import Onlooker
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors, is_bit_equal
from tensorprobe.replay.result import BitReport
from tensorprobe.replay.workspace import has_same_statistics
from tensorprobe.run.backward_pass import LeafGradient
from tensorprobe.run.leaf import Leaf


class BitJudge(Onlooker):
    """Holds each floating value of a replay against the recorded one: by its bits where there is a file of it, else by
    its statistics."""

    def __init__(self, program: Program, device: torch.device, limit: float = math.inf) -> None:
        """`limit`: the position of the last record that is wanted. What a later backward pass writes anew is not
        there before."""
        self._program = program
        self._limit = limit
        self._recorded = RecordedTensors(program.rank, device, program.kept)
        self._reducer = Reducer()
        self._verdicts: dict[tuple[str, str], bool | None] = {}

    @property
    def report(self) -> BitReport:
        """What was found, of each value that was recorded."""
        report = BitReport(self._program.rank.name)
        report.equal_count = sum(is_equal is True for is_equal in self._verdicts.values())
        report.different = [place for place, is_equal in self._verdicts.items() if is_equal is False]
        report.unknown = [place for place, is_equal in self._verdicts.items() if is_equal is None]
        return report

    def see_results(self, operation: Operation, tensors: Tensors) -> None:
        for leaf in operation.outputs:
            if leaf.slot in tensors:
                self._hold(operation.name, leaf, tensors[leaf.slot])

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        leaf = self._program.gradient_leaves(record).get(slot)
        if leaf is not None:
            self._hold(record, leaf, gradient)

    def see_leaf_gradient(self, record: str, leaf: LeafGradient, gradient: torch.Tensor) -> None:
        if leaf.after is not None and leaf.after.data_name is not None:
            self._hold(record, replace(leaf.after, slot=leaf.name), gradient)

    def _hold(self, record: str, leaf: Leaf, tensor: torch.Tensor) -> None:
        is_wanted = self._program.position_of(record) <= self._limit
        if not leaf.is_floating or not leaf.element_count or leaf.is_undefined or not is_wanted:
            return
        try:
            recorded = self._recorded.load(leaf)
        except MissingContentError:
            is_equal: bool | None = self._has_recorded_statistics(leaf, tensor)
        else:
            is_equal = is_bit_equal(recorded, tensor)
        # where several backward passes give a gradient, the dump has that of the last
        self._verdicts[record, leaf.slot] = is_equal

    def _has_recorded_statistics(self, leaf: Leaf, tensor: torch.Tensor) -> bool | None:
        if not isinstance(leaf.fields.get("Norm"), (int, float)):
            return None
        stats = self._reducer.reduce(tensor.detach())
        self._reducer.fetch()
        return has_same_statistics(leaf, replace(leaf, fields={"Max": stats.max, "Min": stats.min, "Norm": stats.norm}))
