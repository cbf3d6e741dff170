"""Executes a recorded step again: each call by its name, on what the calls before it gave.

Somebody who looks on is told of each value as it comes. Nothing is kept longer than the program needs it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tensorprobe.replay.argument import UnknownArgumentError, build_arguments
from tensorprobe.replay.gradient import Gradients
from tensorprobe.replay.invocation import (
    Invoker,
    NotReplayedError,
    Tensors,
    is_random,
    is_undefined,
    tensors_by_slot,
)
from tensorprobe.replay.precision import Precision, torch_dtype
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors
from tensorprobe.replay.workspace import Workspace, lay_out


class Onlooker:
    """Is told what a replay computes. Tensors that it wants to keep it must copy: calls write in place."""

    def see_inputs(self, operation: Operation, tensors: Tensors) -> None:
        """A call is about to be made on these."""

    def see_results(self, operation: Operation, tensors: Tensors) -> None:
        """A call has returned these."""

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        """A gradient has come, of the name that it was recorded by."""


@dataclass
class Coverage:
    """What was replayed, and what was not."""

    call_count: int = 0
    replayed: int = 0
    random: int = 0
    """Calls whose results were drawn: they are those recorded."""
    gaps: dict[str, str] = field(default_factory=dict)
    """The calls that could not be replayed, and why: their results are those recorded."""
    decisions: dict[str, str] = field(default_factory=dict)
    """Calls with a result that is no floating-point number and came out otherwise, and its place: it is the one
    recorded."""


class Replay:
    """One execution of a program."""

    def __init__(
        self,
        program: Program,
        precision: Precision,
        device: torch.device,
        onlooker: Onlooker | None = None,
        advance: Callable[[], None] = lambda: None,
    ) -> None:
        self.program = program
        self.coverage = Coverage()
        self._onlooker = onlooker or Onlooker()
        self._advance = advance
        self.recorded = RecordedTensors(program.rank, device)
        self._invoker = Invoker(self.recorded, precision, device)
        self.gradients = Gradients(program, self._onlooker)
        self.workspace = Workspace(self.recorded, precision, self.gradients.roots, self.gradients.note_leaf)
        self._last_use = find_last_uses(program)

    def run(self) -> None:
        """Execute everything, forward and backward."""
        for operation in self.program.operations:
            self._run(operation)
        self.gradients.run_passes(self.workspace, math.inf)

    def _run(self, operation: Operation) -> None:
        if operation.is_module:
            self._run_module(operation)
        else:
            self.gradients.run_passes(self.workspace, operation.position)
            self._run_call(operation)
        self.workspace.forget(*self._last_use.pop(operation.name, ((), ())))

    def _run_module(self, operation: Operation) -> None:
        """A module call owns no values: what goes in and comes out are those of the calls around and inside of it."""
        args, kwargs = self._find_values(list(operation.arguments)), self._find_values(dict(operation.keywords))
        span = self.gradients.begin(operation, args, kwargs)
        for child in operation.children:
            self._run(child)
        results = self._find_values(list(operation.results))
        self.gradients.end(operation, span, tuple(results))
        self._onlooker.see_results(operation, dict(tensors_by_slot(results, "output")))

    def _find_values(self, tree: Any) -> Any:
        """A recorded tree with the tensors that stand for what is in it, and None for everything else."""
        try:
            return build_arguments(tree, "", frozenset(), self.workspace.find, lambda kind, value: None)
        except UnknownArgumentError:  # a text that was shortened: no tensor is missed by leaving out all
            return type(tree)()

    def _run_call(self, operation: Operation) -> None:
        self.coverage.call_count += 1
        self._advance()
        if not operation.has_ended:
            return
        try:
            self._execute(operation)
            self.coverage.replayed += 1
        except Exception as error:  # whatever a function of torch says to its arguments
            self.coverage.gaps[operation.name] = describe_error(error)
            self._pin_results(operation)

    def _execute(self, operation: Operation) -> None:
        if is_undefined(operation) and not operation.writes_in_place:
            self._make_undefined(operation)
        elif is_random(operation):
            self.coverage.random += 1
            self._pin_results(operation)
        elif operation.prefix == "Autograd":
            self._pass_on(operation)
        else:
            self._call(operation)

    def _call(self, operation: Operation) -> None:
        args, kwargs = self._invoker.build_arguments(
            operation, lambda leaf: self.workspace.take(leaf, operation.name)
        )
        given = {**dict(tensors_by_slot(args, "input")), **dict(tensors_by_slot(kwargs, "kwargs"))}
        self._onlooker.see_inputs(operation, given)
        span = self.gradients.begin(operation, args, kwargs)
        output, found = self._invoker.invoke(operation, args, kwargs)
        self._add_results(operation, found)
        self.gradients.end(operation, span, output)

    def _add_results(self, operation: Operation, found: Tensors) -> None:
        results = {}
        for leaf in operation.outputs:
            tensor = found[leaf.slot]
            if not (leaf.is_floating or tensor.is_floating_point() or tensor.is_complex()):
                tensor = self._decide(operation, leaf, tensor)
            results[leaf.slot] = tensor
            self.workspace.add(leaf, tensor, operation.name)
        self._onlooker.see_results(operation, results)

    def _decide(self, operation: Operation, leaf: Any, tensor: torch.Tensor) -> torch.Tensor:
        """A choice, a mask, an index: the program went on with the one that was recorded."""
        try:
            recorded = self.recorded.load(leaf)
        except MissingContentError:
            return tensor
        if torch.equal(recorded, tensor.to(recorded.dtype)):
            return tensor
        self.coverage.decisions[operation.name] = leaf.slot
        return recorded.clone()

    def _make_undefined(self, operation: Operation) -> None:
        """Memory that is about to be written: zeros, so that what is never written shows nowhere."""
        for leaf in operation.outputs:
            dtype = self._invoker.precision.dtype(torch_dtype(leaf.dtype))
            zeros = torch.zeros(leaf.shape, dtype=dtype, device=self._invoker.device)
            self.workspace.add(leaf, lay_out(zeros, leaf), operation.name)

    def _pass_on(self, operation: Operation) -> None:
        """An autograd Function of the program: the calls inside it have been replayed, and made its results."""
        for leaf in operation.outputs:
            tensor = self.workspace.find(leaf)
            if tensor is None:
                raise NotReplayedError("what it computes is not seen")
            self.workspace.add(leaf, tensor, operation.name)

    def _pin_results(self, operation: Operation) -> None:
        """Take the recorded results for those of the call."""
        for leaf in operation.outputs:
            try:
                content = self._invoker.precision.convert(self.recorded.load(leaf))
            except MissingContentError:
                continue
            found = self.workspace.find(leaf) if operation.writes_in_place else None
            if found is None:
                found = lay_out(content, leaf)
            else:
                with torch.no_grad():
                    found.copy_(content)
            self.workspace.add(leaf, found, operation.name)


def find_last_uses(program: Program) -> dict[str, tuple[list[int], list[int]]]:
    """For each call the tensors and storages that nobody looks at after it."""
    last_tensor: dict[int, str] = {}
    last_storage: dict[int, str] = {}
    for operation in program.endings():
        for leaf in (*operation.inputs, *operation.outputs):
            if leaf.tensor is not None:
                last_tensor[leaf.tensor] = operation.name
            if leaf.storage is not None:
                last_storage[leaf.storage] = operation.name
    found: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number, name in last_tensor.items():
        found[name][0].append(number)
    for number, name in last_storage.items():
        found[name][1].append(number)
    return found


def describe_error(error: Exception) -> str:
    """The first line of what went wrong."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
