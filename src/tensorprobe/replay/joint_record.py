"""What several ranks recorded of one call: the inputs of a collective on all its ranks, and the parts of distributed
tensors, which are put together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import torch

from tensorprobe.replay.communication import Communication, Key, read_communication, read_communications
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.recorded import RecordedTensors
from tensorprobe.replay.spread import combine
from tensorprobe.replay.spread_call import is_spread_call
from tensorprobe.run.leaf import Leaf

Call = tuple[Communication, RecordedTensors]
Part = tuple[Leaf, RecordedTensors]


class JointRecord:
    """The records of ranks that are replayed together."""

    def __init__(self, programs: Mapping[int, Program], recorded: Mapping[int, RecordedTensors]) -> None:
        self.programs, self.recorded = programs, recorded
        self._calls: dict[Key, dict[int, Call]] = defaultdict(dict)
        self._parts: dict[int, list[Part]] = {}
        """The parts of a distributed tensor, by the address of what is recorded of one of them."""
        for rank, program in programs.items():
            for call in read_communications(program):
                self._calls[call.key(rank)][rank] = (call, recorded[rank])
        for operations in _match_spread(programs):
            for leaves in zip(*(_leaves(programs[rank], item) for rank, item in operations), strict=False):
                parts = [(leaf, recorded[rank]) for leaf, (rank, _) in zip(leaves, operations, strict=True)]
                self._parts.update((id(leaf.fields), parts) for leaf in leaves)

    def find_calls(self, operation: Operation, rank: int) -> list[Call] | None:
        """The calls of all ranks that belong to a collective; None where one is missing."""
        own = read_communication(operation)
        found = self._calls.get(own.key(rank), {}) if own is not None else {}
        members = own.members(rank) if own is not None else ()
        return [found[member] for member in members] if members and all(item in found for item in members) else None

    def find_parts(self, leaf: Leaf) -> Sequence[Part] | None:
        """The parts of a distributed tensor on all ranks of its mesh."""
        return self._parts.get(id(leaf.fields))


class RecordedWholes(RecordedTensors):
    """What was recorded, with distributed tensors put together."""

    joint: JointRecord | None = None

    def load(self, leaf: Leaf) -> torch.Tensor:
        parts = self.joint.find_parts(leaf) if self.joint is not None and leaf.sharding is not None else None
        if parts is None or leaf.sharding is None:
            return super().load(leaf)
        return combine([recorded.load(part) for part, recorded in parts], leaf.sharding)


def _match_spread(programs: Mapping[int, Program]) -> Iterator[list[tuple[int, Operation]]]:
    """The calls with distributed tensors that ranks make together, in the order of their mesh: by their order there."""
    found: dict[tuple[tuple[int, ...], int], dict[int, Operation]] = defaultdict(dict)
    for rank, program in programs.items():
        counts: dict[tuple[int, ...], int] = defaultdict(int)
        for operation in program.calls():
            if is_spread_call(operation) and operation.prefix != "Autograd":
                ranks = next(
                    leaf.sharding.mesh_ranks
                    for leaf in (*operation.inputs, *operation.outputs)
                    if leaf.sharding is not None and leaf.sharding.mesh_ranks
                )
                found[ranks, counts[ranks]][rank] = operation
                counts[ranks] += 1
    for (ranks, _), operations in found.items():
        if all(rank in operations for rank in ranks) and len({item.op for item in operations.values()}) == 1:
            yield [(rank, operations[rank]) for rank in ranks]


def _leaves(program: Program, operation: Operation) -> list[Leaf]:
    """All tensors of a call and its gradients, in an order that is the same on all ranks."""
    arriving, departing = program.gradients_of(operation)
    return [*operation.inputs, *operation.outputs, *arriving.values(), *departing.values()]
