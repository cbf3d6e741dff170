"""The gradients of a replay: the hooks of capture, on the graph that the replay makes, so that each gradient means what
the recorded one of the same name means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from tensorprobe.capture.call import Call, GradientRecord, Slot
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.torch.gradient import GradientTracer, Span
from tensorprobe.model.name import PARAMETERS_GRAD, ParametersGradName, module_stem, parse_name
from tensorprobe.replay.argument import Leaf
from tensorprobe.replay.board import Standing
from tensorprobe.replay.program import BackwardPass, Operation, Program
from tensorprobe.replay.reduced_gradient import ReducedGradients, parameter_gradients
from tensorprobe.replay.workspace import Workspace

_MAX_PASSES = 1 << 12
"""Of one step: more are not those of a program."""
SeeGradient = Callable[[str, str, torch.Tensor], None]
"""Told of a gradient: the record and the place that it was recorded by, and what it is."""


class _Always:
    follows_gradients = True


class GradientReceiver:
    """What the hooks of capture tell their recorder, handed on to somebody who looks on."""

    records_modules = True
    recomputation = _Always()
    generation = 0

    def __init__(self, see_gradient: SeeGradient) -> None:
        self._see_gradient = see_gradient
        self.failures: list[tuple[str, BaseException]] = []
        self.reader = self

    def begin_backward(self, record: GradientRecord) -> None:
        """The first gradient of a call has come."""

    def end_backward(self, record: GradientRecord) -> None:
        """The last one has."""

    def end_nested_pass(self, backward_pass: int) -> None:
        """A pass inside another is over."""

    def end_backward_pass(self) -> None:
        """The last pass is over."""

    def add_gradients(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return first.detach() + second.detach()

    def describe_gradient(self, record: GradientRecord, slot: Slot) -> None:
        self._see_gradient(record.call.backward_name, slot.path, slot.share.detach())

    def add_parameter_gradient(self, stem: str, parameter: str, gradient: torch.Tensor) -> None:
        self._see_gradient(f"{stem}.{PARAMETERS_GRAD}", parameter, gradient.detach())

    def note_failure(self, where: str, error: BaseException) -> None:
        self.failures.append((where, error))


class Gradients:
    """Follows the calls of a replay, and tells which backward passes come next."""

    def __init__(self, program: Program, see_gradient: SeeGradient, reduced: ReducedGradients) -> None:
        self._program = program
        self.reduced = reduced
        self.receiver = GradientReceiver(see_gradient)
        self._tracer = GradientTracer(cast(Recorder, self.receiver))
        self._stem_of_path = dict(_stems_of_paths(program))
        self._passes = read_passes(program)
        self._parameters: dict[str, torch.Tensor] = {}
        self._records = dict(parameter_gradients(program))
        self.delivered: set[tuple[str, str]] = set()
        """The records and places of gradients whose truth has come."""

    @property
    def roots(self) -> frozenset[int]:
        """The tensors from which gradients are asked for."""
        return frozenset(number for found in self._passes for number in found.roots)

    @property
    def needed(self) -> frozenset[int]:
        """All tensors that backward passes begin from, are given or end at."""
        others = (number for found in self._passes for number in (*found.seeds, *found.inputs) if number is not None)
        return self.roots | frozenset(others)

    def note_leaf(self, leaf: Leaf, tensor: torch.Tensor) -> None:
        """A leaf was read: if it is a parameter, its gradient is one that was recorded."""
        if leaf.parameter is None or not tensor.requires_grad:
            return
        if self.reduced.claims(leaf):
            self.reduced.note(leaf, tensor)
            return
        path, _, name = leaf.parameter.rpartition(".")
        stem = self._stem_of_path.get(path)
        if stem is None:
            return
        known = self._records.get(leaf.parameter)
        if known is not None and known.leaf.stored_shape != tuple(tensor.shape):
            return  # the gradient lies otherwise on its ranks, as with FSDP2 around tensor parallel
        self._parameters[leaf.parameter] = tensor
        if leaf.sharding is None:
            self._tracer.add_parameter(tensor, stem, name)
        else:  # no call uses the part itself
            tensor.register_post_accumulate_grad_hook(
                lambda part: self.receiver.add_parameter_gradient(stem, name, part.grad)
            )

    def begin(self, operation: Operation, args: Any, kwargs: Mapping[str, Any]) -> Span | None:
        return self._tracer.begin(tuple(args), dict(kwargs), wants_slots=True)

    def end(self, operation: Operation, span: Span | None, output: Any) -> None:
        call = Call(operation.name, operation.name, operation.backward_name, None)
        call.keeps_backward = operation.backward_name in self._program.gradients
        self._tracer.end(call, span, output)

    def next_pass(self, workspace: Workspace, position: float) -> BackwardRequest | None:
        """The next backward pass that came before the record at `position`."""
        if not self._passes or self._passes[0].position > position:
            return None
        found = self._passes.pop(0)
        if found.begins_anew:
            workspace.forget_gradients()
        request = BackwardRequest(found, bool(self._passes), note_failure=self.receiver.note_failure)
        for number, seed in zip(found.roots, found.seeds, strict=True):
            root = workspace.tensor(number)
            if root is not None and root.requires_grad:
                given = workspace.tensor(seed)
                request.roots.append(root)
                request.seeds.append(
                    given if given is not None else workspace.read(found.seed_leaves.get(number), root)
                )
        for wanted in found.inputs:
            tensor = workspace.tensor(wanted)
            request.inputs.append(tensor if tensor is not None and tensor.requires_grad else None)
        return request

    def describe_missing(self) -> Iterator[str]:
        """The gradients of parameters that have no truth, in words."""
        yield from self.reduced.describe_missing()
        missing = set(self._records) - set(self.reduced.missing)
        count = sum((self._records[name].record, self._records[name].slot) not in self.delivered for name in missing)
        if count:
            which = "1 parameter has" if count == 1 else f"{count} parameters have"
            yield f"the gradients of {which} no truth: how they come about between ranks or calls is not seen"

    def register(self, workspace: Workspace) -> None:
        """A pass is over: what stands in `.grad` now is what the program finds there."""
        for name, tensor in self._parameters.items():
            known = self._records.get(name)
            if known is not None and tensor.grad is not None and known.leaf.sharding is None:
                workspace.add(known.leaf, tensor.grad, known.record)


@dataclass
class BackwardRequest(Standing):
    """A rank stands at a backward pass."""

    asked: BackwardPass
    retains: bool
    """Another pass may go through the same graph."""
    roots: list[torch.Tensor] = field(default_factory=list)
    seeds: list[torch.Tensor] = field(default_factory=list)
    inputs: list[torch.Tensor | None] = field(default_factory=list)
    """With respect to what; empty for all leaves."""
    results: list[torch.Tensor | None] = field(default_factory=list)
    """Where gradients are not added to `.grad`: they themselves, one for each input."""
    note_failure: Callable[[str, BaseException], None] = lambda where, error: None
    is_done: bool = False
    place: str = "a backward pass"

    @property
    def is_open(self) -> bool:
        return self.is_done


def run_passes(requests: Sequence[BackwardRequest]) -> None:
    """The backward passes of several ranks at once. What all of them have in common is gone through once."""
    for accumulates in (True, False):
        chosen = [item for item in requests if item.asked.accumulates == accumulates and item.roots]
        try:
            if chosen:
                _run_alike(chosen, accumulates)
        except Exception as error:  # a value that it needs was written to: the dump is not what was executed
            for item in chosen:
                item.note_failure("the backward pass", error)
    for item in requests:
        item.is_done = True


def _run_alike(requests: Sequence[BackwardRequest], accumulates: bool) -> None:
    given = {id(root): (root, seed) for item in requests for root, seed in zip(item.roots, item.seeds, strict=True)}
    roots, seeds = zip(*given.values(), strict=True)
    inputs = {id(tensor): tensor for item in requests for tensor in item.inputs if tensor is not None}
    retains = any(item.retains for item in requests)
    creates = any(item.asked.creates_graph for item in requests)
    if accumulates:
        torch.autograd.backward(roots, seeds, retains, creates, inputs=list(inputs.values()) or None)
    elif inputs:
        found = torch.autograd.grad(roots, list(inputs.values()), seeds, retains, creates, allow_unused=True)
        by_input = dict(zip(inputs, found, strict=True))
        for item in requests:
            item.results = [by_input.get(id(tensor)) for tensor in item.inputs]


def read_passes(program: Program) -> list[BackwardPass]:
    """The backward passes of a step, in their order, as run.json has them."""
    if program.passes is not None:
        return list(program.passes)
    found: list[BackwardPass] = []
    listed = program.rank.run.get("backward_passes")
    for item in listed if isinstance(listed, list) else ():
        position = item.get("records") if isinstance(item, dict) else None
        if isinstance(position, int) and len(found) < _MAX_PASSES:
            roots, seeds = _tensor_numbers(item.get("roots")), _tensor_numbers(item.get("gradients"))
            seeds = seeds if len(seeds) == len(roots) else [None] * len(roots)
            known = [(root, seed) for root, seed in zip(roots, seeds, strict=True) if root is not None]
            found.append(
                BackwardPass(
                    position,
                    tuple(root for root, _ in known),
                    tuple(seed for _, seed in known),
                    tuple(_tensor_numbers(item.get("inputs"))),
                    tuple(_tensor_numbers(item.get("results"))),
                    item.get("accumulates") is not False,
                    item.get("creates_graph") is True,
                )
            )
    return found


def _tensor_numbers(listed: Any) -> list[int | None]:
    items = listed if isinstance(listed, list) else []
    numbers = [item.get("tensor") if isinstance(item, dict) else None for item in items]
    return [number if isinstance(number, int) else None for number in numbers]


def _stems_of_paths(program: Program) -> Iterator[tuple[str, str]]:
    for name in program.gradients:
        parsed = parse_name(name)
        if isinstance(parsed, ParametersGradName):
            yield parsed.path, module_stem(parsed.prefix, parsed.path, parsed.class_name)
