"""What one rank does in the collectives of its program: it brings what it has, and takes what comes out.

A collective is brought to the others when it was started and taken when it was waited for, as the program did: a rank
that has started two may wait for them in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from tensorprobe.replay.board import Meeting, NotJoinedError, Steps, attend, wait_for
from tensorprobe.replay.communication import Communication, Key, read_communications
from tensorprobe.replay.exchange import Results, exchange
from tensorprobe.replay.function_flow import read_function_flow
from tensorprobe.replay.invocation import NotReplayedError, Tensors
from tensorprobe.replay.precision import torch_dtype
from tensorprobe.replay.program import Operation
from tensorprobe.replay.recorded import MissingContentError
from tensorprobe.replay.workspace import lay_out
from tensorprobe.run.leaf import Leaf

if TYPE_CHECKING:
    from tensorprobe.replay.engine import Replay

Way = Literal["values", "own", "all"]
"""How gradients pass: not at all, each to the rank that it comes from, or to all ranks."""
_DIFFERENTIABLE = "_c10d_functional_autograd."
_EXTREMES = ("max", "min")
"""Where the backward of a Function is silent, the largest number of all ranks is a constant: that of a softmax."""


@dataclass(frozen=True)
class Contribution:
    """What one rank brings."""

    communication: Communication
    tensors: Sequence[torch.Tensor]
    way: Way


class Participant:
    """The collectives of one rank."""

    def __init__(self, replay: Replay, rank: int) -> None:
        self._replay = replay
        self._rank = rank
        self.flow = read_function_flow(replay.program)
        found = [item for item in read_communications(replay.program) if not replay.is_inside_spread(item.operation)]
        self._communications = {item.operation.name: item for item in found}
        backward = {name for name, item in self._communications.items() if is_in_backward(item.operation)}
        self._starts = sorted(
            (item for name, item in self._communications.items() if name not in backward),
            key=lambda item: item.started,
            reverse=True,
        )
        self._entered: list[tuple[Leaf, torch.Tensor]] = []
        self._refused: dict[Key, str] = {}
        """The sums over ranks that a Function's backward makes, and that do not come about."""

    def bring_started(self, position: int) -> None:
        """What was started before the record at `position`."""
        while self._starts and self._starts[-1].started <= position:
            communication = self._starts.pop()
            key = communication.key(self._rank)
            try:
                contribution = self._make_contribution(communication)
            except Exception as error:  # an input that is not there
                self._replay.board.refuse(key, f"rank {self._rank} has not got what it sends: {error}")
                continue
            meeting = Meeting(key, communication.members(self._rank), exchange_contributions)
            self._replay.board.bring(meeting, self._rank, contribution)

    def find(self, operation: Operation) -> Communication | None:
        return self._communications.get(operation.name)

    def execute(self, communication: Communication) -> Steps:
        """The results of a collective. NotJoinedError where others were missing."""
        operation = communication.operation
        if is_in_backward(operation):
            self._check_backward(communication)
            return {}
        self.bring_started(communication.started)
        if communication.kind == "send":  # who receives it comes for it
            return {}
        key = communication.key(self._rank)
        yield from wait_for(self._replay.board, key, operation.name)
        results = self._replay.board.take(key, self._rank)
        if results is None:
            self.pin(communication)
            return {}
        return self._put(communication, results)

    def pin(self, communication: Communication) -> None:
        """Take what was recorded for the result."""
        for number, leaf in enumerate(communication.results):
            try:
                content = self._replay.values.read_recorded(leaf)
            except MissingContentError:
                continue
            tensor = content
            if communication.writes:
                tensor = self._find_memory(communication.writes[number])
                tensor.data.copy_(content)
            self._replay.workspace.add(leaf, tensor, communication.operation.name)

    def enter(self, operation: Operation) -> Steps:
        """Before the first call inside a Function: inputs whose gradients its backward adds up over ranks."""
        name = self.flow.entries.get(operation.name, operation.name)
        if name == operation.name and name in self.flow.entries.values():
            return
        for total in self.flow.sums.get(name, ()):
            communication = total.communication
            tensor = self._replay.values.take(total.leaf, operation)
            key = ("function", communication.key(self._rank))
            meeting = Meeting(key, communication.ranks, add_up)
            contribution = (tensor, communication.op)
            try:
                own = yield from attend(self._replay.board, meeting, self._rank, contribution, operation.name)
            except NotJoinedError as error:
                self._refused[communication.key(self._rank)] = str(error)
                continue
            self._entered.append((total.leaf, tensor))
            self._replay.workspace.exchange(total.leaf, own)

    def leave(self, operation: Operation) -> None:
        """After a Function: other calls get its inputs as they were."""
        if operation.name in self.flow.sums:
            for leaf, tensor in self._entered:
                self._replay.workspace.exchange(leaf, tensor)
            self._entered.clear()

    def _check_backward(self, communication: Communication) -> None:
        """One that a Function's backward makes: done when gradients pass through it."""
        function = communication.operation.inside or ""
        forward = function.removesuffix(".backward") + ".forward"
        if self.flow.unclear.get(forward) == communication.operation.name:
            raise NotReplayedError(f"what {function} does with it is not seen")
        key = communication.key(self._rank)
        reason = self._refused.get(key) or self._replay.board.refusal(key)
        if reason is not None:
            raise NotJoinedError(reason)

    def _make_contribution(self, communication: Communication) -> Contribution:
        operation = communication.operation
        tensors = [self._replay.values.take(leaf, operation) for leaf in communication.reads]
        named = zip(communication.reads, tensors, strict=True)
        self._replay.onlooker.see_contribution(operation, {leaf.slot: tensor for leaf, tensor in named})
        way = self._find_way(operation)
        if way == "values":  # the program may write to it before the others come
            tensors = [tensor.detach().clone() for tensor in tensors]
        return Contribution(communication, tensors, way)

    def _find_way(self, operation: Operation) -> Way:
        if operation.inside is not None:
            return "all" if operation.name in self.flow.spanning else "own"
        is_followed = operation.fields.get("grad_enabled") is not False
        return "all" if operation.op.startswith(_DIFFERENTIABLE) and is_followed else "values"

    def _put(self, communication: Communication, results: Sequence[torch.Tensor]) -> Tensors:
        found: dict[str, torch.Tensor] = {}
        for number, value in enumerate(results):
            tensor = value
            if communication.writes:
                memory = self._find_memory(communication.writes[number])
                tensor = rewrite(memory, value.reshape(memory.shape).to(memory.dtype))
            if number < len(communication.results):
                leaf = communication.results[number]
                self._replay.workspace.add(leaf, tensor, communication.operation.name)
                found[leaf.slot] = tensor
        return found

    def _find_memory(self, leaf: Leaf) -> torch.Tensor:
        """The tensor that is written to."""
        found = self._replay.workspace.find(leaf)
        if found is None:
            dtype = self._replay.precision.dtype(torch_dtype(leaf.dtype))
            found = lay_out(torch.zeros(leaf.shape, dtype=dtype, device=self._replay.device), leaf)
            self._replay.workspace.add(leaf, found, None)
        return found


def is_in_backward(operation: Operation) -> bool:
    """Was it called by the backward of a Function?"""
    return (operation.inside or "").endswith(".backward")


def exchange_contributions(contributions: Sequence[Contribution]) -> list[Results]:
    """What each rank gets."""
    calls = [item.communication for item in contributions]
    given = [item.tensors for item in contributions]
    if all(item.way == "values" for item in contributions):
        with torch.no_grad():
            return exchange(calls, given)
    if any(item.way == "all" for item in contributions):
        return exchange(calls, given)
    still = [[tensor.detach() for tensor in tensors] for tensors in given]
    if calls[0].op in _EXTREMES:  # what others give later was computed with it, too: it is subtracted and cancels
        found = exchange(calls, still)
        return [
            results and [Constant.apply(one, own[0]) for one in results]
            for results, own in zip(found, given, strict=True)
        ]
    return [
        exchange(calls, [tensors if number == place else still[number] for number, tensors in enumerate(given)])[place]
        for place in range(len(calls))
    ]


class Constant(torch.autograd.Function):  # type: ignore[misc]
    """A value that hangs where another one hangs in the graph, and gives nothing back."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(at)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, torch.zeros_like(ctx.saved_tensors[0])


class AddUp(torch.autograd.Function):  # type: ignore[misc]
    """Passes on what each rank has; each gets back the sum of what all get back."""

    @staticmethod
    def forward(ctx: Any, op: str, *tensors: torch.Tensor) -> Any:
        ctx.op = op
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        total = torch.stack(gradients).sum(0)
        return (None, *[total if ctx.op != "avg" else total / len(gradients)] * len(gradients))


def add_up(contributions: Sequence[tuple[torch.Tensor, str]]) -> Sequence[torch.Tensor]:
    """The tensors of all ranks, such that their gradients will be added up."""
    results: Sequence[torch.Tensor] = AddUp.apply(contributions[0][1], *(tensor for tensor, _ in contributions))
    return results


class _Rewrite(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, memory: list[torch.Tensor]) -> torch.Tensor:
        memory[0].data.copy_(value)
        return memory[0].data

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


def rewrite(memory: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Write into a tensor without a new version, as collectives do. What is returned lies in the same memory, and
    hangs where `value` hangs in the graph; where that is nowhere, the tensor stays where it was."""
    if value.requires_grad:
        written: torch.Tensor = _Rewrite.apply(value, [memory])
        return written
    memory.data.copy_(value)
    return memory
