"""The gradients of a replay: the hooks of capture, on the graph that the replay makes, so that each gradient means what
the recorded one of the same name means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import torch

from tensorprobe.capture.call import Call, GradientRecord, Slot
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.torch.gradient import GradientTracer, Span
from tensorprobe.model.name import PARAMETERS_GRAD, ParametersGradName, module_stem, parse_name
from tensorprobe.replay.argument import Leaf, iter_leaves
from tensorprobe.replay.program import Operation, Program


class _Always:
    follows_gradients = True


class GradientReceiver:
    """What the hooks of capture tell their recorder, handed on to somebody who looks on."""

    records_modules = True
    recomputation = _Always()
    generation = 0

    def __init__(self, onlooker: Any) -> None:
        self._onlooker = onlooker
        self.failures: list[tuple[str, BaseException]] = []
        self.reader = self
        self._open: dict[GradientRecord, None] = {}

    def begin_backward(self, record: GradientRecord) -> None:
        """The first gradient of a call has come."""
        self._open[record] = None

    def end_backward(self, record: GradientRecord) -> None:
        """The last one has."""
        self._open.pop(record, None)

    def end_nested_pass(self, backward_pass: int) -> None:
        """A pass inside another is over."""

    def end_backward_pass(self) -> None:
        """The last pass is over: not every way that a gradient may come is taken."""
        for record in list(self._open):
            record.finish()

    def add_gradients(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return first.detach() + second.detach()

    def describe_gradient(self, record: GradientRecord, slot: Slot) -> None:
        self._onlooker.see_gradient(record.call.backward_name, slot.path, slot.share.detach())

    def add_parameter_gradient(self, stem: str, parameter: str, gradient: torch.Tensor) -> None:
        self._onlooker.see_gradient(f"{stem}.{PARAMETERS_GRAD}", parameter, gradient.detach())

    def note_failure(self, where: str, error: BaseException) -> None:
        self.failures.append((where, error))


class Gradients:
    """Follows the calls of a replay."""

    def __init__(self, program: Program, onlooker: Any) -> None:
        self._program = program
        self.receiver = GradientReceiver(onlooker)
        self._tracer = GradientTracer(cast(Recorder, self.receiver))
        self._names: dict[int, tuple[str, str]] = {}
        """The module and the name of each parameter, by its address."""
        self._stem_of_path = dict(_stems_of_paths(program))

    def note_leaf(self, leaf: Leaf, tensor: torch.Tensor) -> None:
        """A leaf was read: if it is a parameter, its gradient is one that was recorded."""
        if leaf.parameter is not None and tensor.is_leaf and tensor.requires_grad:
            path, _, name = leaf.parameter.rpartition(".")
            stem = self._stem_of_path.get(path)
            if stem is not None:
                self._tracer.add_parameter(tensor, stem, name)
                self._names[id(tensor)] = stem, name

    def tell_parameter(self, tensor: torch.Tensor) -> None:
        """A leaf has got a gradient by a way that no hook sees."""
        if id(tensor) in self._names and tensor.grad is not None:
            self.receiver.add_parameter_gradient(*self._names[id(tensor)], tensor.grad)

    def begin(self, operation: Operation, args: Any, kwargs: Mapping[str, Any]) -> Span | None:
        return self._tracer.begin(tuple(args), dict(kwargs), wants_slots=True)

    def give_up(self, span: Span | None) -> None:
        """What the call is made of is not to be followed."""
        self._tracer.end(None, span, None, has_failed=True)

    def end(self, operation: Operation, span: Span | None, output: Any) -> None:
        call = Call(operation.name, operation.name, operation.backward_name, None)
        call.keeps_backward = operation.backward_name in self._program.gradients
        self._tracer.end(call, span, output)


def backward_leaves(fields: Mapping[str, Any]) -> tuple[dict[str, Leaf], dict[str, Leaf]]:
    """Of a backward record: the gradients of the results, by their places in the forward record, and those of the
    arguments."""
    arriving = {leaf.slot.replace("input", "output", 1): leaf for leaf in iter_leaves(fields.get("input"), "input")}
    departing = {leaf.slot.replace("output", "input", 1): leaf for leaf in iter_leaves(fields.get("output"), "output")}
    departing.update((leaf.slot, leaf) for leaf in iter_leaves(fields.get("output_kwargs"), "kwargs"))
    return arriving, departing


def parameter_gradient(program: Program, parameter: str | None) -> tuple[str, Leaf] | None:
    """The record and the leaf of the gradient of a parameter, where modules are recorded."""
    path, _, name = (parameter or "").rpartition(".")
    record = dict(_stems_of_paths(program)).get(path)
    fields = program.gradients.get(f"{record}.{PARAMETERS_GRAD}", {}) if record is not None and name else {}
    leaf = next(iter_leaves(fields.get(name), name), None)
    return (f"{record}.{PARAMETERS_GRAD}", replace(leaf, slot=name)) if leaf is not None else None


def _stems_of_paths(program: Program) -> Iterator[tuple[str, str]]:
    for name in program.gradients:
        parsed = parse_name(name)
        if isinstance(parsed, ParametersGradName):
            yield parsed.path, module_stem(parsed.prefix, parsed.path, parsed.class_name)
