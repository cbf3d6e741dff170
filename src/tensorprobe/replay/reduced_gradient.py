"""Gradients that are averaged over ranks where nothing can be seen: by DistributedDataParallel after a backward pass,
by FSDP2, which besides cuts them into parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tensorprobe.replay.board import Meeting, NotJoinedError, Steps, attend
from tensorprobe.replay.gathered_parameter import find_gathered
from tensorprobe.replay.parameter_gradient import parameter_gradients
from tensorprobe.replay.program import Program
from tensorprobe.replay.spread import cut, part_leaf
from tensorprobe.run.leaf import Leaf

if TYPE_CHECKING:
    from tensorprobe.replay.engine import Replay

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Reduction:
    """DistributedDataParallel was called: the next backward pass ends in an average."""

    records: int
    ranks: Ranks
    parameters: frozenset[str]


class ReducedGradients:
    """The parameters of one rank whose gradients are averaged."""

    def __init__(self, program: Program, rank: int) -> None:
        self._rank = rank
        self._records = dict(parameter_gradients(program))
        self._reductions = list(read_reductions(program))
        self._averaged = frozenset(name for reduction in self._reductions for name in reduction.parameters)
        self._gathered = {
            name: ranks
            for name, ranks in find_gathered(program).items()
            if name not in {*self._records, *self._averaged}
        }
        self._tensors: dict[str, list[torch.Tensor]] = {}
        """Several, where a parameter is put together anew for each use."""
        self._passes = 0
        self._last = 0
        self.missing: dict[str, str] = {}
        """Parameters whose gradients cannot be averaged, and why."""

    def claims(self, leaf: Leaf) -> bool:
        """Is the gradient of this parameter averaged?"""
        found = self._records.get(leaf.parameter or "")
        if leaf.sharding is not None:
            return False
        is_told = leaf.parameter in self._averaged or leaf.parameter in self._gathered
        return is_told or (found is not None and is_cut(found.leaf, leaf))

    def note(self, leaf: Leaf, tensor: torch.Tensor) -> None:
        """This tensor stands for the parameter."""
        assert leaf.parameter is not None
        self._tensors.setdefault(leaf.parameter, []).append(tensor)

    def describe_missing(self) -> Iterator[str]:
        """The gradients that could not be averaged, in words."""
        for reason in dict.fromkeys(self.missing.values()):
            count = sum(found == reason for found in self.missing.values())
            what = "gradient of 1 parameter is" if count == 1 else f"gradients of {count} parameters are"
            yield f"the {what} averaged over ranks, and not compared: {reason}"

    def end_pass(self, replay: Replay, position: int) -> Steps:
        """A backward pass is over: average what it has left."""
        number, self._passes = self._passes, self._passes + 1
        groups = dict(self._group(position))
        self._last = position
        for ranks, names in groups.items():
            gradients = {name: add_gradients(self._tensors[name]) for name in names}
            if len(ranks) > 1:
                meeting = Meeting(("gradients", ranks, number), ranks, average)
                try:
                    gradients = yield from attend(
                        replay.board, meeting, self._rank, gradients, "the average of its gradients over ranks"
                    )
                except NotJoinedError as error:
                    self.missing.update(dict.fromkeys(names, str(error)))
                    continue
            for name, gradient in gradients.items():
                if gradient is not None and name in self._tensors:
                    self._deliver(replay, name, gradient)

    def _group(self, position: int) -> Iterator[tuple[Ranks, list[str]]]:
        """The parameters by the ranks over which they are averaged now."""
        due = [item for item in self._reductions if self._last <= item.records <= position]
        found: dict[Ranks, list[str]] = {}
        for name in sorted(self._tensors):
            sharding = self._records[name].leaf.sharding if name in self._records else None
            ranks: Ranks = self._gathered.get(name, (self._rank,))
            if sharding is not None:
                ranks = sharding.mesh_ranks
            for reduction in due:
                ranks = reduction.ranks if name in reduction.parameters else ranks
            found.setdefault(ranks, []).append(name)
        return iter(found.items())

    def _deliver(self, replay: Replay, name: str, gradient: torch.Tensor) -> None:
        known = self._records.get(name)  # without modules it stands with its backward pass
        if known is not None and known.leaf.sharding is not None:
            replay.spread.tensors.add(known.leaf, gradient)
            part = cut(gradient, known.leaf.sharding, self._rank)
            if part is not None:
                replay.workspace.write(part_leaf(known.leaf), part)
                replay.see_gradient(known.record, known.slot, part)
            return
        for number, tensor in enumerate(self._tensors[name]):
            tensor.grad = gradient.clone() if not number else None
        if known is not None:
            replay.see_gradient(known.record, known.slot, gradient)
        elif name in self._gathered:
            replay.onlooker.see_gathered_gradient(name, gradient)


def add_gradients(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The sum of the gradients of tensors that stand for one."""
    found = [tensor.grad for tensor in tensors if tensor.grad is not None]
    return torch.stack(found).sum(0) if found else None


def is_cut(gradient: Leaf, parameter: Leaf) -> bool:
    """Is the gradient in parts, and the parameter that computed whole? So it is with FSDP2."""
    return gradient.sharding is not None and bool(gradient.sharding.mesh_ranks) and gradient.shape == parameter.shape


def average(contributions: Sequence[Mapping[str, torch.Tensor | None]]) -> Sequence[dict[str, torch.Tensor | None]]:
    """The mean over ranks of the gradient of each parameter; where a rank has none it counts as zero."""
    found: dict[str, torch.Tensor | None] = {}
    for name in dict.fromkeys(name for gradients in contributions for name in gradients):
        given = [gradients.get(name) for gradients in contributions]
        there = [gradient for gradient in given if gradient is not None]
        found[name] = torch.stack(there).sum(0) / len(contributions) if there else None
    return [found for _ in contributions]


def read_reductions(program: Program) -> Iterator[Reduction]:
    """What run.json says of averages that nobody could see."""
    listed: Any = program.rank.run.get("gradient_reductions")
    for item in listed if isinstance(listed, list) else ():
        group = item.get("group") if isinstance(item, dict) else None
        ranks = group.get("ranks") if isinstance(group, dict) else None
        names, records = item.get("parameters"), item.get("records")
        if isinstance(ranks, list) and isinstance(names, list) and isinstance(records, int):
            numbers = tuple(rank for rank in ranks if isinstance(rank, int))
            yield Reduction(records, numbers, frozenset(name for name in names if isinstance(name, str)))
