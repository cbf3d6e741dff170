"""Several ranks of one step with the truth of every value: each rank's calls, what it brings to collectives, and the
gradients that it ends up with.

A distributed tensor is its whole, on each of its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tensorprobe.model.record import Sharding
from tensorprobe.replay.communication import read_communications
from tensorprobe.replay.engine import Replay
from tensorprobe.replay.invocation import Tensors
from tensorprobe.replay.joint import run_jointly
from tensorprobe.replay.onlooker import Onlooker, Onlookers
from tensorprobe.replay.parameter_gradient import parameter_gradients
from tensorprobe.replay.precision import Precision
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.rank_step import RankStep
from tensorprobe.replay.spread import cut
from tensorprobe.replay.true_step import Array, LeafKey
from tensorprobe.replay.true_step_builder import KEEP_VALUES, Keeping, TrueStepBuilder, make_replacement, to_array
from tensorprobe.run.backward_pass import LeafGradient


def build_joint_steps(
    programs: Sequence[Program],
    device: torch.device,
    keeping: Keeping = KEEP_VALUES,
    replacements: Mapping[int, Mapping[LeafKey, Array]] | None = None,
) -> dict[int, RankStep]:
    """Replay all ranks of a step in float64, together. `replacements`: other contents for leaves, by rank."""
    builders = [_JointStepBuilder(program, keeping) for program in programs]
    finals = [FinalState(program) for program in programs]
    replays = [
        Replay(
            program,
            Precision("float64"),
            device,
            Onlookers(builder, final),
            replace_leaf=make_replacement((replacements or {}).get(program.rank.rank or 0, {})),
        )
        for program, builder, final in zip(programs, builders, finals, strict=True)
    ]
    for replay, builder in zip(replays, builders, strict=True):
        builder.roots = replay.roots
    with torch.random.fork_rng(devices=()):
        run_jointly(replays)
    found = {}
    for replay, builder, final in zip(replays, builders, finals, strict=True):
        communications = {one.operation.name: one for one in read_communications(replay.program)}
        rank = RankStep(replay.rank, builder.finish(replay.coverage), communications)
        rank.gradients, rank.updated = final.gradients, final.parameters
        rank.parameters = _find_parameters(rank, final)
        found[replay.rank] = rank
    return found


def _find_parameters(rank: RankStep, final: FinalState) -> dict[str, Array]:
    """As they were at the start, in the form that their gradients have."""
    found: dict[str, Array] = {}
    for value in rank.step.values:  # FSDP puts them together from its parts, by calls
        if value.parameter is not None and value.parameter not in found:
            found[value.parameter] = final.cut(value.parameter, value.array, rank.rank)
    return found


class _JointStepBuilder(TrueStepBuilder):
    """Sees, besides, what ranks do together."""

    def __init__(self, program: Program, keeping: Keeping) -> None:
        super().__init__(program, keeping)
        self._contributions: dict[str, dict[str, int]] = {}
        self._spread: set[str] = set()

    def see_contribution(self, operation: Operation, tensors: Tensors) -> None:
        self._contributions[operation.name] = self._number_all(operation, tensors)

    def see_spread(self, operation: Operation, given: Tensors, results: Tensors) -> None:
        self._spread.add(operation.name)
        call = self._add_call(operation, self._number_all(operation, given))
        for leaf in operation.outputs:
            if leaf.slot in results:
                number = self._number(results[leaf.slot], leaf, operation.name)
                call.outputs[leaf.slot] = number
                self._values[number].is_root |= self.roots.has(operation, leaf)

    def see_results(self, operation: Operation, tensors: Tensors) -> None:
        if operation.name in self._contributions:
            self._begin_collective(operation, tensors)
        if operation.name not in self._spread:  # which have been seen whole
            super().see_results(operation, tensors)

    def see_pinned(self, operation: Operation, tensors: Tensors) -> None:
        if operation.name in self._contributions:
            self._begin_collective(operation, tensors)
        super().see_pinned(operation, tensors)

    def _begin_collective(self, operation: Operation, tensors: Tensors) -> None:
        """It writes to tensors without a new version of them."""
        for tensor in tensors.values():
            self._known.pop(id(tensor), None)
        self._add_call(operation, self._contributions.pop(operation.name))

    def _number_all(self, operation: Operation, tensors: Tensors) -> dict[str, int]:
        leaves = {leaf.slot: leaf for leaf in operation.inputs}
        return {
            slot: self._number(tensor, leaves[slot], self._find_maker(leaves[slot]))
            for slot, tensor in tensors.items()
            if slot in leaves
        }


class FinalState(Onlooker):
    """Parameters and their gradients as the program leaves them: what backward passes gave, and what was written there
    afterwards, by a collective, a division, an update."""

    def __init__(self, program: Program) -> None:
        self.gradients: dict[str, Array] = {}
        self.parameters: dict[str, Array] = {}
        self._rank = program.rank.rank or 0
        self._shardings: dict[str, Sharding] = {}
        self._gradient_tensors: dict[int, str] = {}
        self._by_record: dict[tuple[str, str], str] = {}
        for name, known in parameter_gradients(program):
            self._by_record[known.record, known.slot] = name
            if known.leaf.sharding is not None:
                self._shardings[name] = known.leaf.sharding
                self._gradient_tensors.update({known.leaf.tensor: name} if known.leaf.tensor is not None else {})
        self._parameter_tensors: dict[int, str] = {
            leaf.tensor: leaf.parameter
            for operation in program.calls()
            for leaf in operation.operands
            if leaf.parameter is not None and leaf.tensor is not None and leaf.parameter not in self._shardings
        }

    def cut(self, name: str, content: Array, rank: int) -> Array:
        """The part of a whole parameter that has the gradient of this rank."""
        sharding = self._shardings.get(name)
        if sharding is None or content.shape == sharding.local_shape:
            return content
        part = cut(torch.from_numpy(content), sharding, rank)
        return content if part is None else part.numpy()

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        name = self._by_record.get((record, slot))
        if name is not None:
            self.gradients[name] = to_array(gradient)

    def see_gathered_gradient(self, parameter: str, gradient: torch.Tensor) -> None:
        self.gradients[parameter] = to_array(gradient)

    def see_leaf_gradient(self, record: str, leaf: LeafGradient, gradient: torch.Tensor) -> None:
        if leaf.leaf.parameter is None:
            return
        self.gradients[leaf.leaf.parameter] = to_array(gradient)
        if leaf.after is not None and leaf.after.tensor is not None:
            self._gradient_tensors[leaf.after.tensor] = leaf.leaf.parameter

    def see_results(self, operation: Operation, tensors: Tensors) -> None:
        for leaf in operation.outputs if not operation.is_module else ():
            if leaf.tensor is None or leaf.slot not in tensors:
                continue
            if leaf.tensor in self._gradient_tensors:
                self.gradients[self._gradient_tensors[leaf.tensor]] = to_array(tensors[leaf.slot])
            elif leaf.tensor in self._parameter_tensors:
                self.parameters[self._parameter_tensors[leaf.tensor]] = to_array(tensors[leaf.slot])

    def see_spread(self, operation: Operation, given: Tensors, results: Tensors) -> None:
        """A gradient that lies on several ranks is changed as a whole, and each has its part of it."""
        for leaf in operation.outputs:
            name = self._gradient_tensors.get(leaf.tensor) if leaf.tensor is not None else None
            if name is not None and leaf.slot in results:
                self.gradients[name] = self.cut(name, to_array(results[leaf.slot]), self._rank)

    def see_pinned(self, operation: Operation, tensors: Tensors) -> None:
        self.see_results(operation, tensors)
