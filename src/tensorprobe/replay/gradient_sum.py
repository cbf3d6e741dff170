"""Does a tensor get back the sum of what its users give back? A hook on it shows as another sum.

All of it is recorded: nothing is computed again. What a hook does is code that nobody has, so a replay goes on with the
gradient that was recorded behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tensorprobe.replay.argument import UnknownArgumentError
from tensorprobe.replay.judge import Unit, judge
from tensorprobe.replay.program import Program
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors
from tensorprobe.replay.reduced_gradient import parameter_gradients, read_reductions
from tensorprobe.replay.result import Judgement
from tensorprobe.replay.value_flow import FlowValue, iter_values, leaf_uses
from tensorprobe.run.backward_pass import BackwardPass
from tensorprobe.run.leaf import Leaf

_SUM_UNITS = 0.75
"""Adding up rounds by half a unit each time, whoever does it."""


@dataclass(frozen=True)
class BrokenSum:
    """A gradient that is not what its users give back."""

    record: str
    """Where it is recorded."""
    gradient: Leaf
    tensor: Leaf
    """Whose gradient it is."""
    maker: str | None
    """The call that returned the tensor; None for a leaf."""
    judgement: Judgement
    users: tuple[str, ...]


def find_broken_sums(program: Program, recorded: RecordedTensors) -> list[BrokenSum]:
    """Of the results of calls, and of leaves. Nothing can be said where gradients of gradients are asked for: these
    come back by ways that no call has."""
    passes = program.backward_passes
    if any(one.creates_graph for one in passes):
        return []
    checker = _Checker(program, recorded)
    roots = {root.tensor for one in passes for root in one.roots if root is not None}
    found = [*checker.check_values(roots)]
    if len(passes) == 1 and passes[0].accumulates:  # of several only the last is recorded
        found += checker.check_leaves(passes[0])
    return found


class _Checker:
    def __init__(self, program: Program, recorded: RecordedTensors) -> None:
        self._program = program
        self._recorded = recorded

    def check_values(self, roots: set[int | None]) -> Iterator[BrokenSum]:
        for value in iter_values(self._program):
            arriving = self._program.gradients_of(value.maker)[0].get(value.leaf.slot)
            if arriving is None or value.leaf.tensor in roots | self._program.unclear:
                continue
            judgement = self._judge(arriving, self._shares(value))
            if judgement is not None and not judgement.is_explained:
                users = tuple(user.backward_name for user, _ in value.uses)
                maker = value.maker
                yield BrokenSum(maker.backward_name, arriving, value.leaf, maker.name, judgement, users)

    def check_leaves(self, one: BackwardPass) -> Iterator[BrokenSum]:
        uses, parameters = leaf_uses(self._program), dict(parameter_gradients(self._program))
        averaged = {name for reduction in read_reductions(self._program) for name in reduction.parameters}
        for leaf in one.all_leaves:
            if leaf.leaf.parameter in averaged:  # over ranks
                continue
            after = replace(leaf.after, slot=leaf.name) if leaf.after is not None else None
            known = parameters.get(leaf.leaf.parameter or "")
            record, gradient = (known.record, replace(known.leaf, slot=known.slot)) if known else (one.name, after)
            used = uses.get(leaf.leaf.tensor or -1)
            if leaf.before is not None or gradient is None or not used:
                continue
            shares = [self._program.gradients_of(user)[1].get(given.slot) for user, given in used]
            judgement = self._judge(gradient, [share for share in shares if share is not None])
            if judgement is not None and not judgement.is_explained:
                users = tuple(user.backward_name for user, _ in used)
                yield BrokenSum(record, gradient, leaf.leaf, None, judgement, users)

    def _shares(self, value: FlowValue) -> list[Leaf]:
        found = [self._program.gradients_of(user)[1].get(leaf.slot) for user, leaf in value.uses]
        return [leaf for leaf in found if leaf is not None]

    def _judge(self, arriving: Leaf, shares: Sequence[Leaf]) -> Judgement | None:
        """None where nothing can be said."""
        if not shares or arriving.sharding is not None or any(share.shape != arriving.shape for share in shares):
            return None
        try:
            recorded = self._recorded.load(arriving)
            given = [self._recorded.load(leaf) for leaf in shares]
            total: Any = torch.zeros(arriving.shape, dtype=torch.float64, device=recorded.device)
            for share in given:
                total = total + share
            unit = Unit.of(recorded.dtype, *(share.dtype for share in given), count=max(1, len(given) - 1))
        except (MissingContentError, UnknownArgumentError, RuntimeError, TypeError):
            return None
        size: Any = sum(share.detach().abs().to(torch.float64) for share in given)
        # shares of either sign: each addition errs by a unit of what is added
        room = unit.eps * float(size.square().mean().sqrt()) if size.numel() else 0.0
        return judge(recorded, total, unit, _SUM_UNITS, find_sensitivity=lambda: room)
