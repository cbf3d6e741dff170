"""The gradients of a replay: the hooks of capture, on the graph that the replay makes, so that each gradient means what
the recorded one of the same name means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch

from tensorprobe.capture.call import Call, GradientRecord, Slot
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.torch.gradient import GradientTracer
from tensorprobe.capture.torch.hook_plan import Span
from tensorprobe.capture.torch.node import is_leaf
from tensorprobe.model.name import PARAMETERS_GRAD
from tensorprobe.replay.parameter_gradient import parameter_gradients
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.reduced_gradient import ReducedGradients
from tensorprobe.run.leaf import Leaf

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
        self._see_gradient(record.call.backward_name, slot.path, slot.share.detach())

    def add_parameter_gradient(self, stem: str, parameter: str, gradient: torch.Tensor) -> None:
        self._see_gradient(f"{stem}.{PARAMETERS_GRAD}", parameter, gradient.detach())

    def note_failure(self, where: str, error: BaseException) -> None:
        self.failures.append((where, error))


class Gradients:
    """Follows the calls of a replay."""

    def __init__(self, program: Program, see_gradient: SeeGradient, reduced: ReducedGradients) -> None:
        self._program = program
        self.reduced = reduced
        self.receiver = GradientReceiver(see_gradient)
        self._tracer = GradientTracer(cast(Recorder, self.receiver))
        self._stem_of_path = dict(_stems_of_paths(program))
        self._names: dict[int, tuple[str, str]] = {}
        """The module and the name of each parameter, by its address."""
        self._records = dict(parameter_gradients(program))
        self.delivered: set[tuple[str, str]] = set()
        """The records and places of gradients whose truth has come."""

    def note_leaf(self, leaf: Leaf, tensor: torch.Tensor) -> None:
        """A leaf was read: if it is a parameter, its gradient is one that was recorded."""
        if leaf.parameter is None or not is_leaf(tensor) or not tensor.requires_grad:
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
        self._names[id(tensor)] = stem, name
        if leaf.sharding is None:
            self._tracer.add_parameter(tensor, stem, name)
        else:  # no call uses the part itself
            tensor.register_post_accumulate_grad_hook(
                lambda part: self.receiver.add_parameter_gradient(stem, name, part.grad)
            )

    def tell_parameter(self, tensor: torch.Tensor) -> None:
        """A leaf has got a gradient by a way that no hook sees."""
        if id(tensor) in self._names and tensor.grad is not None:
            self.receiver.add_parameter_gradient(*self._names[id(tensor)], tensor.grad)

    def begin(self, operation: Operation, args: Any, kwargs: Mapping[str, Any]) -> Span | None:
        return self._tracer.begin(tuple(args), dict(kwargs), wants_slots=True)

    def add_state(self, span: Span | None, state: Mapping[str, Any]) -> None:
        """What a layer takes besides its arguments, by its roles. No record has these gradients: of a parameter that
        several layers share, only the sum is recorded."""
        if span is not None:
            noted = [self._tracer.note_inputs(span, tree, role) for role, tree in state.items()]
            span.keyword_slots = [span.keyword_slots, *noted]

    def give_up(self, span: Span | None) -> None:
        """What the call is made of is not to be followed."""
        self._tracer.end(None, span, None, has_failed=True)

    def end(self, operation: Operation, span: Span | None, output: Any) -> None:
        call = Call(operation.name, operation.name, operation.backward_name, None)
        call.keeps_backward = operation.backward_name in self._program.gradients
        self._tracer.end(call, span, output)

    def describe_missing(self) -> Iterator[str]:
        """The gradients of parameters that have no truth, in words."""
        yield from self.reduced.describe_missing()
        missing = set(self._records) - set(self.reduced.missing)
        count = sum((self._records[name].record, self._records[name].slot) not in self.delivered for name in missing)
        if not self._records:  # without modules they stand with their backward passes
            passes = self._program.backward_passes
            left = ((one.name, leaf) for one in passes for leaf in one.all_leaves if leaf.after is not None)
            asked = {(name, leaf.name) for name, leaf in left if leaf.leaf.parameter is not None}
            count = len({name for _, name in asked - self.delivered})
        if count:
            which = "1 parameter has" if count == 1 else f"{count} parameters have"
            yield f"the gradients of {which} no truth: how they come about between ranks or calls is not seen"


def _stems_of_paths(program: Program) -> Iterator[tuple[str, str]]:
    for name in program.gradients:
        call = program.run.by_name[name]
        if call.kind == "parameters_grad":
            yield call.path, call.stem
