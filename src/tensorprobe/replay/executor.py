"""Makes the calls of one rank again: by their names, by their meanings, or by the calls inside them.

What cannot be made again keeps what was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from tensorprobe.capture.torch.function import UnknownFunctionError
from tensorprobe.capture.torch.hook_plan import Span
from tensorprobe.replay.board import Steps
from tensorprobe.replay.decision import find_margin
from tensorprobe.replay.invocation import Tensors, is_random, is_undefined, tensors_by_slot
from tensorprobe.replay.meaning.registry import MeaningError
from tensorprobe.replay.own_backward import OwnBackward
from tensorprobe.replay.pin import Load, pin_gradients
from tensorprobe.replay.precision import torch_dtype
from tensorprobe.replay.program import Operation
from tensorprobe.replay.recorded import MissingContentError
from tensorprobe.replay.region import Regions, is_repeated
from tensorprobe.replay.result import Decision
from tensorprobe.replay.spread_call import is_inside_spread, is_spread_call
from tensorprobe.replay.value import Given
from tensorprobe.replay.workspace import lay_out
from tensorprobe.replay.write import find_written, is_written, write_into
from tensorprobe.run.leaf import Leaf

if TYPE_CHECKING:
    from tensorprobe.replay.engine import Replay


@dataclass
class Around:
    """What is followed around the calls inside a Function."""

    given: Given
    span: Span | None
    is_over: bool = False
    own: OwnBackward | None = None


class Executor:
    """One call after the other."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._values, self._workspace = replay.values, replay.workspace
        self._gradients, self._recorded = replay.gradients, replay.recorded
        self._precision, self._coverage = replay.precision, replay.coverage
        self._invoker = replay.invoker
        self._invoker.note_choice = self._note_choice
        self._regions = Regions(self._gradients.tell_parameter)
        self._written = find_written(replay.program)

    def execute(self, operation: Operation, around: Around | None) -> Steps:
        """What it gives; nothing where that is not computed."""
        if is_inside_spread(operation):  # it is carried out with what it is inside of
            return {}
        if is_spread_call(operation):
            return (yield from self._replay.spread.execute(operation))
        if is_undefined(operation) and not operation.writes_in_place:
            self._make_undefined(operation)
            return {}
        if is_random(operation) and not (operation.has_backward and operation.framework == "pytorch"):
            self._coverage.random += 1
            self.pin_results(operation)
            return {}
        if operation.is_layer:
            return self._run_layer(operation)
        if operation.is_function:
            return self._execute_function(operation, around)
        return self._call(operation)

    def pin_results(self, operation: Operation) -> None:
        """Take the recorded results for those of the call, and the recorded gradients for those of its arguments."""
        args, kwargs = self._values.find_arguments(operation)
        self._replay.show_arguments(operation, args, kwargs)
        made: dict[str, torch.Tensor] = {}
        written: dict[str, torch.Tensor] = {}
        for leaf in operation.outputs:
            try:
                content = self._precision.convert(self._recorded.load(leaf))
            except MissingContentError:
                continue
            if leaf.sharding is not None:
                self._replay.spread.pin(leaf, content)
                continue
            found = self._workspace.find(leaf) if is_written(operation, leaf) else None
            if found is not None and write_into(found, content):
                written[leaf.slot] = found
            else:
                made[leaf.slot] = lay_out(content, leaf)
        if operation.has_backward and made:
            given = dict(tensors_by_slot(args, "input")) | dict(tensors_by_slot(kwargs, "kwargs"))
            span = self._gradients.begin(operation, args, kwargs)
            made = dict(pin_gradients(made, given, self._make_load(operation)))
            self._gradients.end(operation, span, tuple(made.values()))
        pinned = written | made
        for leaf in operation.outputs:
            if leaf.slot in pinned:
                self._workspace.add(leaf, pinned[leaf.slot], operation.name)
        self._replay.onlooker.see_pinned(operation, pinned)

    def _execute_function(self, operation: Operation, around: Around | None) -> Tensors:
        """An autograd Function of the program: by its meaning, where it has one, else by the calls inside it."""
        kernel = self._invoker.find_kernel(operation)
        if kernel is not None:
            try:
                return self._call(operation)
            except MeaningError:
                if not kernel.is_built_in or not self._is_made(operation):
                    raise  # else it is another Function of the same name
        return self._pass_on(operation, around)

    def _is_made(self, operation: Operation) -> bool:
        return all(self._workspace.find(leaf) is not None for leaf in operation.outputs)

    def _run_layer(self, operation: Operation) -> Tensors:
        """A layer that is one record: the calls that it is made of give its results. If one of them fails, it does."""
        args, kwargs = self._values.take_arguments(operation)
        self._replay.show_arguments(operation, args, kwargs)
        span = self._gradients.begin(operation, args, kwargs)
        self._gradients.add_state(span, self._values.find_state(operation))
        try:
            for part in operation.children:
                self._replay.check_memory(self._call(part))
            results = self._find_results(operation)
        except Exception:
            self._gradients.give_up(span)
            raise
        self._gradients.end(operation, span, tuple(results.values()))
        self._add_made(operation, results)
        for slot, tensor in results.items():
            self._values.pin_gradient(tensor, operation.name, slot)
        return results

    def _call(self, operation: Operation) -> Tensors:
        given: dict[int, Leaf] = {}
        if not is_repeated(operation):
            self._regions.leave()

        def take(leaf: Leaf) -> torch.Tensor:
            tensor = self._values.take(leaf, operation)
            if is_repeated(operation):
                tensor = self._regions.take(tensor)
            given[id(tensor)] = leaf
            return tensor

        args, kwargs = self._invoker.build_arguments(operation, take)
        if not operation.is_part:
            self._replay.show_arguments(operation, args, kwargs)
        span = self._gradients.begin(operation, args, kwargs)
        output, found = self._invoker.invoke(operation, args, kwargs)
        output, found = self._tell_apart(operation, given, output, found)
        self._gradients.end(operation, span, output)
        results = self._add_results(operation, found, (args, kwargs))
        if operation.name in self._coverage.decisions:
            decision = self._coverage.decisions[operation.name]
            self._coverage.decisions[operation.name] = replace(
                decision, error=self._find_error(operation, args, kwargs)
            )
        return results

    def _find_error(self, operation: Operation, args: Any, kwargs: Any) -> float | None:
        """How far the numbers that a call was given are from their truth, all together, at most."""
        given = dict(tensors_by_slot(args, "input")) | dict(tensors_by_slot(kwargs, "kwargs"))
        error = 0.0
        for leaf in operation.inputs:
            if leaf.is_floating and leaf.slot in given:
                try:
                    distance = (self._recorded.load(leaf) - given[leaf.slot].detach()).abs()
                except MissingContentError:
                    return None
                error += float(distance.nan_to_num(0.0, 0.0).max()) if distance.numel() else 0.0
        return error

    def _tell_apart(
        self, operation: Operation, given: Mapping[int, Leaf], output: Any, found: Tensors
    ) -> tuple[Any, Tensors]:
        """A cast means nothing in float64, and torch returns what it was given. Where the program got another tensor,
        this one gets another, too: it is another place in the graph, and may be written to."""
        told: dict[int, torch.Tensor] = {}
        for leaf in operation.outputs:
            if is_written(operation, leaf):
                continue
            tensor = found[leaf.slot]
            taken = given.get(id(tensor))
            if taken is not None and taken.tensor is not None and taken.tensor != leaf.tensor:
                is_changed = leaf.storage in self._written or taken.storage in self._written
                told[id(tensor)] = tensor.clone() if is_changed else tensor.view_as(tensor)
        if not told:
            return output, found
        return replace_tensors(output, told), {slot: told.get(id(tensor), tensor) for slot, tensor in found.items()}

    def _add_results(self, operation: Operation, found: Tensors, given: Given) -> Tensors:
        results = {}
        for leaf in operation.outputs:
            tensor = found[leaf.slot]
            if not (leaf.is_floating or tensor.is_floating_point() or tensor.is_complex()):
                tensor = self._decide(operation, leaf, tensor, given)
            results[leaf.slot] = tensor
            self._workspace.add(leaf, tensor, operation.name)
            self._values.pin_gradient(tensor, operation.name, leaf.slot)
        return results

    def _decide(self, operation: Operation, leaf: Leaf, tensor: torch.Tensor, given: Given) -> torch.Tensor:
        """A choice, a mask, an index: the program went on with the one that was recorded."""
        if self._recorded.chooses_anew:
            return tensor
        try:
            recorded = self._recorded.load(leaf)
        except MissingContentError:
            return tensor
        if torch.equal(recorded, tensor.to(recorded.dtype)):
            return tensor
        if operation.name not in self._coverage.decisions:  # of a choice with values, its own meaning has told more
            differing = int((recorded != tensor.to(recorded.dtype)).sum())
            margin = find_margin(operation.op, *given, recorded, tensor)
            self._coverage.decisions[operation.name] = Decision(differing, tensor.numel(), margin)
        if is_written(operation, leaf):
            tensor.data.copy_(recorded)
            return tensor
        return recorded.clone()

    def _note_choice(self, operation: Operation, distance: torch.Tensor) -> None:
        if bool(distance.any()):
            decision = Decision(int(distance.count_nonzero()), distance.numel(), float(distance.max()))
            self._coverage.decisions[operation.name] = decision

    def _make_undefined(self, operation: Operation) -> None:
        """Memory that is about to be written: zeros, so that what is never written shows nowhere."""
        self._invoker.allocation.check_bytes(8 * sum(leaf.element_count for leaf in operation.outputs))
        for leaf in operation.outputs:
            dtype = self._precision.dtype(torch_dtype(leaf.dtype))
            zeros = torch.zeros(leaf.shape, dtype=dtype, device=self._replay.device)
            self._workspace.add(leaf, lay_out(zeros, leaf), operation.name)

    def _pass_on(self, operation: Operation, around: Around | None) -> Tensors:
        """An autograd Function of the program: the calls inside it have been replayed, and made its results."""
        results = self._find_results(operation)
        if around is not None and operation.name not in self._replay.participant.flow.communicating:
            results = self._follow_function(operation, around, results)
        self._add_made(operation, results)
        return results

    def _find_results(self, operation: Operation) -> dict[str, torch.Tensor]:
        """What the calls inside it have made of its results."""
        results: dict[str, torch.Tensor] = {}
        for leaf in operation.outputs:
            tensor = self._workspace.find(leaf)
            if tensor is None:
                raise UnknownFunctionError("it made no recorded calls that give its results")
            results[leaf.slot] = tensor
        return results

    def _add_made(self, operation: Operation, results: Tensors) -> None:
        for leaf in operation.outputs:
            self._workspace.add(leaf, results[leaf.slot], operation.name)

    def _follow_function(
        self, operation: Operation, around: Around, results: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Its gradients: in float64 the derivative of the calls inside it, unless its own backward is another one, else
        what that has given."""
        args, kwargs = around.given
        given = dict(tensors_by_slot(args, "input")) | dict(tensors_by_slot(kwargs, "kwargs"))
        is_new = not {id(tensor) for tensor in given.values()} & {id(tensor) for tensor in results.values()}
        if operation.has_backward and is_new and not self._precision.is_wide:
            self._gradients.give_up(around.span)
            around.span = self._gradients.begin(operation, args, kwargs)
            results = dict(pin_gradients(results, given, self._make_load(operation)))
        if around.own is not None:
            results = around.own.join(results)
            around.own.see_results(results)
        self._gradients.end(operation, around.span, tuple(results.values()))
        around.is_over = True
        return results

    def _make_load(self, operation: Operation) -> Load:
        """Reads the recorded gradients of a call's arguments."""
        _, departing = self._replay.program.gradients_of(operation)

        def load(slot: str) -> torch.Tensor | None:
            leaf = departing.get(slot)
            try:
                return self._precision.convert(self._recorded.load(leaf)) if leaf is not None else None
            except MissingContentError:
                return None

        return load


def replace_tensors(tree: Any, told: Mapping[int, torch.Tensor]) -> Any:
    """The same lists and tuples with other tensors in them."""
    if isinstance(tree, torch.Tensor):
        return told.get(id(tree), tree)
    if isinstance(tree, (list, tuple)):
        return (tuple if isinstance(tree, tuple) else list)(replace_tensors(item, told) for item in tree)
    return tree
