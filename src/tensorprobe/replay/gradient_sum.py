"""Does a tensor get back the sum of what its users give back? A hook on it shows as another sum.

All of it is recorded: only what comes back inside a call is computed again. What a hook does is code that nobody has,
so a replay goes on with the gradient that was recorded behind it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tensorprobe.replay.alone import LoneCall
from tensorprobe.replay.argument import UnknownArgumentError
from tensorprobe.replay.invocation import Invoker
from tensorprobe.replay.judge import Unit, judge
from tensorprobe.replay.parameter_gradient import parameter_gradients
from tensorprobe.replay.precision import Precision
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors
from tensorprobe.replay.reduced_gradient import read_reductions
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
    checker = _Checker(program, recorded, sorted(one.position for one in passes))
    roots = {root.tensor for one in passes for root in one.roots if root is not None}
    found = [*checker.check_values(roots)]
    if len(passes) == 1 and passes[0].accumulates:  # of several only the last is recorded
        found += checker.check_leaves(passes[0])
    return found


class _Checker:
    def __init__(self, program: Program, recorded: RecordedTensors, beginnings: Sequence[int]) -> None:
        self._program = program
        self._recorded = recorded
        self._beginnings = beginnings
        """How many records there were before each backward pass."""

    def check_values(self, roots: set[int | None]) -> Iterator[BrokenSum]:
        for value in iter_values(self._program):
            arriving = self._program.gradients_of(value.maker)[0].get(value.leaf.slot)
            if arriving is None or value.leaf.tensor in roots | self._program.unclear:
                continue
            maker, shares = value.maker, self._shares(value)
            judgement = self._judge(arriving, shares)
            if judgement is not None and not judgement.is_explained:
                inner = self._inner_share(maker, value.leaf.slot)
                judgement = self._judge(arriving, shares, inner) if inner is not None else judgement
            if judgement is not None and not judgement.is_explained:
                users = tuple(user.backward_name for user, leaf in value.uses if self._gives_back(user, leaf))
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
        """What its users gave back in the pass whose gradients its maker's record has; nothing where that of one is not
        recorded, or of a later pass: of several passes over one graph the last is recorded."""
        if any(user.name in self._program.unrecorded for user, _ in value.uses):
            return []
        arrived = self._pass_of(value.maker)
        found = {user: self._pass_of(user) for user, _ in value.uses}
        if any(number > arrived for number in found.values()):
            return []
        uses = [(user, leaf.slot) for user, leaf in value.uses if found[user] == arrived]
        given = [self._program.gradients_of(user)[1].get(slot) for user, slot in uses]
        return [leaf for leaf in given if leaf is not None]

    def _gives_back(self, user: Operation, leaf: Leaf) -> bool:
        return leaf.slot in self._program.gradients_of(user)[1]

    def _pass_of(self, operation: Operation) -> int:
        """The number of the backward pass that a call's gradients are of."""
        return bisect_right(self._beginnings, self._program.gradient_position(operation.backward_name))

    def _inner_share(self, maker: Operation, slot: str) -> torch.Tensor | None:
        """What comes back to one result of a call from its other results, which it makes of it."""
        arriving = self._program.gradients_of(maker)[0]
        if len(arriving) < 2 or maker.is_made_of_calls:
            return None
        invoker = Invoker(self._recorded, Precision("float64"), self._recorded.device, self._program.limit_bytes)
        try:
            return LoneCall(invoker, maker, arriving).find_inner_share(slot)
        except Exception:  # what cannot be made alone is told among what is not judged
            return None
        finally:
            invoker.close()

    def _judge(self, arriving: Leaf, shares: Sequence[Leaf], inner: torch.Tensor | None = None) -> Judgement | None:
        """None where nothing can be said."""
        if not shares or arriving.sharding is not None or any(share.shape != arriving.shape for share in shares):
            return None
        try:
            recorded = self._recorded.load(arriving)
            given = [self._recorded.load(leaf) for leaf in shares]
            given += [inner.detach().to(recorded.dtype)] if inner is not None else []
            total: Any = torch.zeros(arriving.shape, dtype=torch.float64, device=recorded.device)
            for share in given:
                total = total + share
            unit = Unit.of(recorded.dtype, *(share.dtype for share in given), count=max(1, len(given) - 1))
        except (MissingContentError, UnknownArgumentError, RuntimeError, TypeError):
            return None
        size: Any = sum(share.detach().abs().to(torch.float64) for share in given)
        # shares of either sign: each addition errs by a unit of what is added
        room = unit.eps * float(size.square().mean().sqrt()) if size.numel() else 0.0
        return judge(recorded, total, unit, _SUM_UNITS, sensitivities=(room,))
