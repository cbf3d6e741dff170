"""The gradients of a replay: the hooks of capture, on the graph that the replay makes, so that each gradient means what
the recorded one of the same name means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from tensorprobe.capture.call import Call, GradientRecord, Slot
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.torch.gradient import GradientTracer, Span
from tensorprobe.model.name import PARAMETERS_GRAD, ParametersGradName, module_stem, parse_name
from tensorprobe.replay.argument import Leaf
from tensorprobe.replay.board import Standing
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.reduced_gradient import ReducedGradients, parameter_gradients
from tensorprobe.replay.workspace import Workspace


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

    @property
    def roots(self) -> frozenset[int]:
        """The tensors from which gradients are asked for."""
        return frozenset(number for found in self._passes for number in found.roots)

    @property
    def seeds(self) -> frozenset[int]:
        """The gradients that were given for them."""
        return frozenset(number for found in self._passes for number in found.seeds if number is not None)

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
        roots, seeds = [], []
        for number, seed in zip(found.roots, found.seeds, strict=True):
            root = workspace.tensor(number)
            if root is not None and root.requires_grad:
                roots.append(root)
                given = workspace.tensor(seed)
                seeds.append(given if given is not None else torch.ones_like(root))
        return BackwardRequest(roots, seeds, found.position, retains=bool(self._passes))

    def register(self, workspace: Workspace) -> None:
        """A pass is over: what stands in `.grad` now is what the program finds there."""
        for name, tensor in self._parameters.items():
            known = self._records.get(name)
            if known is not None and tensor.grad is not None and known.leaf.sharding is None:
                workspace.add(known.leaf, tensor.grad, known.record)


@dataclass
class BackwardRequest(Standing):
    """A rank stands at a backward pass."""

    roots: list[torch.Tensor]
    seeds: list[torch.Tensor]
    position: int
    retains: bool
    is_done: bool = False
    place: str = "a backward pass"

    @property
    def is_open(self) -> bool:
        return self.is_done


def run_passes(requests: Sequence[BackwardRequest]) -> None:
    """The backward passes of several ranks at once. What all of them have in common is gone through once."""
    given = {id(root): (root, seed) for item in requests for root, seed in zip(item.roots, item.seeds, strict=True)}
    if given:
        roots, seeds = zip(*given.values(), strict=True)
        torch.autograd.backward(roots, seeds, retain_graph=any(item.retains for item in requests))
    for item in requests:
        item.is_done = True


@dataclass(frozen=True)
class BackwardPass:
    """The engine was asked for gradients."""

    position: int
    """How many records there were before it."""
    roots: tuple[int, ...]
    """The numbers of the tensors that it began from."""
    seeds: tuple[int | None, ...]
    """The numbers of the gradients that were given for them; None where none was, which stands for one."""


def read_passes(program: Program) -> list[BackwardPass]:
    """The backward passes of a step, in their order, as run.json has them."""
    found = []
    listed = program.rank.run.get("backward_passes")
    for item in listed if isinstance(listed, list) else ():
        position = item.get("records") if isinstance(item, dict) else None
        if isinstance(position, int):
            roots, seeds = _tensor_numbers(item.get("roots")), _tensor_numbers(item.get("gradients"))
            seeds = seeds if len(seeds) == len(roots) else [None] * len(roots)
            known = [(root, seed) for root, seed in zip(roots, seeds, strict=True) if root is not None]
            found.append(BackwardPass(position, tuple(root for root, _ in known), tuple(seed for _, seed in known)))
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
