"""Executes a recorded step again: each call by its name, on what the calls before it gave.

Somebody who looks on is told of each value as it comes. Nothing is kept longer than the program needs it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from tensorprobe.replay.argument import Leaf, UnknownArgumentError, build_arguments
from tensorprobe.replay.backward_pass import LeafGradient, PassRunner, read_passes
from tensorprobe.replay.decision import find_margin
from tensorprobe.replay.gradient import Gradients, backward_leaves
from tensorprobe.replay.invocation import (
    Invoker,
    NotReplayedError,
    Tensors,
    is_followed_anyway,
    is_random,
    is_undefined,
    tensors_by_slot,
)
from tensorprobe.replay.pin import pin_gradients
from tensorprobe.replay.precision import Precision, torch_dtype
from tensorprobe.replay.program import WRITTEN, Operation, Program
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors
from tensorprobe.replay.region import Regions
from tensorprobe.replay.result import Coverage, Decision
from tensorprobe.replay.workspace import Workspace, lay_out

if TYPE_CHECKING:
    from tensorprobe.replay.gradient_sum import BrokenSum


Given = tuple[list[Any], dict[str, Any]]
"""The arguments of a call."""


class Onlooker:
    """Is told what a replay computes. Tensors that it wants to keep it must copy: calls write in place."""

    def see_results(self, operation: Operation, tensors: Tensors) -> None:
        """A call has returned these."""

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        """A gradient has come, of the name that it was recorded by."""

    def see_leaf_gradient(self, record: str, leaf: LeafGradient, gradient: torch.Tensor) -> None:
        """A backward pass is over, and this is what it leaves in `.grad`."""


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
        self._invoker.note_choice = self._note_choice
        self.gradients = Gradients(program, self._onlooker)
        self.passes = read_passes(program)
        kept = (number for one in self.passes for number in one.used_tensors())
        self.workspace = Workspace(self.recorded, self._read_leaf, kept)
        self.workspace.note_leaf = self._note_leaf
        self._runner = PassRunner(list(self.passes), self.workspace, self)
        self._pinned: dict[tuple[str | None, str | int | None], Leaf] = {}
        self._regions = Regions(self.gradients.tell_parameter)
        self._last_use = find_last_uses(program)
        self._written = find_written(program)

    def run(self) -> None:
        """Execute everything, forward and backward."""
        try:
            for operation in self.program.operations:
                self._run(operation)
            self._runner.run_until(math.inf)
        finally:
            self._invoker.close()

    def pin_gradients(self, sums: Iterable[BrokenSum]) -> None:
        """Where something changed a gradient on its way, go on with the one that was recorded."""
        for one in sums:
            place = one.tensor.slot if one.maker is not None else one.tensor.tensor
            self._pinned[one.maker, place] = one.gradient

    def note_failed_pass(self, name: str, error: Exception) -> None:
        self.coverage.gaps[name] = describe_error(error)

    def see_leaf_gradient(self, name: str, leaf: LeafGradient, gradient: torch.Tensor) -> None:
        self._onlooker.see_leaf_gradient(name, leaf, gradient)

    def _pin_gradient(self, tensor: torch.Tensor, maker: str | None, place: str | int | None) -> None:
        leaf = self._pinned.get((maker, place))
        if leaf is not None and tensor.requires_grad:
            content = self._invoker.precision.convert(self.recorded.load(leaf))
            tensor.register_hook(lambda _: content)

    def _read_leaf(self, leaf: Leaf) -> torch.Tensor:
        tensor = lay_out(self._invoker.precision.convert(self.recorded.load(leaf)), leaf)
        if leaf.is_floating and leaf.requires_grad:
            self._note_leaf(leaf, tensor.requires_grad_())
        return tensor

    def _note_leaf(self, leaf: Leaf, tensor: torch.Tensor) -> None:
        self.gradients.note_leaf(leaf, tensor)
        self._pin_gradient(tensor, None, leaf.tensor)

    def _run(self, operation: Operation) -> None:
        if operation.is_module:
            self._run_module(operation)
        elif operation.is_part:  # if it fails, its layer does
            self._call(operation)
        else:
            if not operation.children:
                self._runner.run_until(operation.position)
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
            return build_arguments(tree, "", frozenset(), self._find_value, lambda kind, value: None)
        except UnknownArgumentError:  # a text that was shortened: no tensor is missed by leaving out all
            return type(tree)()

    def _find_value(self, leaf: Leaf) -> torch.Tensor | None:
        found = self.workspace.find_followed(leaf)
        if found is None and leaf.requires_grad and leaf.source is None:  # a leaf that the calls inside are given
            try:
                return self.workspace.take(leaf, "a module")
            except MissingContentError:
                return None
        return found

    def _take_state(self, leaf: Leaf, operation: Operation) -> None:
        try:
            self.workspace.take(leaf, operation.name)
        except MissingContentError:
            return  # whoever uses it says so

    def _run_call(self, operation: Operation) -> None:
        self.coverage.call_count += 1
        self._advance()
        if not operation.has_ended:
            return
        self.workspace.follows_all = is_followed_anyway(operation)
        try:
            results = self._execute(operation)
        except Exception as error:  # whatever a function of torch says to its arguments
            self.coverage.gaps[operation.name] = describe_error(error)
            self._pin_results(operation)
            return
        self.coverage.replayed += 1
        self._onlooker.see_results(operation, results)

    def _execute(self, operation: Operation) -> Tensors:
        """What it gives; nothing where that is not computed."""
        if is_undefined(operation) and not operation.writes_in_place:
            self._make_undefined(operation)
            return {}
        if is_random(operation) and not operation.has_backward:
            self.coverage.random += 1
            self._pin_results(operation)
            return {}
        return self._run_inside(operation) if operation.is_made_of_calls else self._call(operation)

    def _call(self, operation: Operation) -> Tensors:
        given: dict[int, Leaf] = {}
        if not is_repeated(operation):
            self._regions.leave()

        def take(leaf: Leaf) -> torch.Tensor:
            tensor = self.workspace.take(leaf, operation.name)
            if is_repeated(operation):
                tensor = self._regions.take(tensor)
            given[id(tensor)] = leaf
            return tensor

        args, kwargs = self._invoker.build_arguments(operation, take)
        span = self.gradients.begin(operation, args, kwargs)
        output, found = self._invoker.invoke(operation, args, kwargs)
        output, found = self._tell_apart(operation, given, output, found)
        self.gradients.end(operation, span, output)
        return self._add_results(operation, found, (args, kwargs))

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
            self.workspace.add(leaf, tensor, operation.name)
            self._pin_gradient(tensor, operation.name, leaf.slot)
        return results

    def _decide(self, operation: Operation, leaf: Leaf, tensor: torch.Tensor, given: Given) -> torch.Tensor:
        """A choice, a mask, an index: the program went on with the one that was recorded."""
        try:
            recorded = self.recorded.load(leaf)
        except MissingContentError:
            return tensor
        if torch.equal(recorded, tensor.to(recorded.dtype)):
            return tensor
        if operation.name not in self.coverage.decisions:  # of a choice with values, its own meaning has told more
            differing = int((recorded != tensor.to(recorded.dtype)).sum())
            margin = find_margin(operation.op, *given, recorded, tensor)
            self.coverage.decisions[operation.name] = Decision(differing, tensor.numel(), margin)
        if is_written(operation, leaf):
            tensor.data.copy_(recorded)
            return tensor
        return recorded.clone()

    def _note_choice(self, operation: Operation, distance: torch.Tensor) -> None:
        if bool(distance.any()):
            decision = Decision(int(distance.count_nonzero()), distance.numel(), float(distance.max()))
            self.coverage.decisions[operation.name] = decision

    def _make_undefined(self, operation: Operation) -> None:
        """Memory that is about to be written: zeros, so that what is never written shows nowhere."""
        for leaf in operation.outputs:
            dtype = self._invoker.precision.dtype(torch_dtype(leaf.dtype))
            zeros = torch.zeros(leaf.shape, dtype=dtype, device=self._invoker.device)
            self.workspace.add(leaf, lay_out(zeros, leaf), operation.name)

    def _run_inside(self, operation: Operation) -> Tensors:
        """An autograd Function of the program, or a layer: the calls inside it make its results."""
        for leaf in operation.state:
            self._find_value(leaf) if leaf.requires_grad else self._take_state(leaf, operation)
        args, kwargs = self._find_values(list(operation.arguments)), self._find_values(dict(operation.keywords))
        given = dict(tensors_by_slot(args, "input")) | dict(tensors_by_slot(kwargs, "kwargs"))
        span = self.gradients.begin(operation, args, kwargs)
        for child in operation.children:
            self._run(child)
        results = {}
        for leaf in operation.outputs:
            tensor = self.workspace.find(leaf)
            if tensor is None:
                raise NotReplayedError("what it computes is not seen")
            results[leaf.slot] = tensor
        is_new = not {id(tensor) for tensor in given.values()} & {id(tensor) for tensor in results.values()}
        if operation.is_function and operation.has_backward and is_new and not self._invoker.precision.is_wide:
            self.gradients.give_up(span)
            span = self.gradients.begin(operation, args, kwargs)
            results = dict(pin_gradients(results, given, self._make_load(operation)))
        for leaf in operation.outputs:
            self.workspace.add(leaf, results[leaf.slot], operation.name)
        self.gradients.end(operation, span, tuple(results.values()))
        return results

    def _make_load(self, operation: Operation) -> Callable[[str], torch.Tensor | None]:
        """Reads the recorded gradients of a call's arguments."""
        _, departing = backward_leaves(self.program.gradients.get(operation.backward_name, {}))

        def load(slot: str) -> torch.Tensor | None:
            leaf = departing.get(slot)
            try:
                return self._invoker.precision.convert(self.recorded.load(leaf)) if leaf is not None else None
            except MissingContentError:
                return None

        return load

    def _pin_results(self, operation: Operation) -> None:
        """Take the recorded results for those of the call, and the recorded gradients for those of its arguments."""
        pinned: dict[str, torch.Tensor] = {}
        for leaf in operation.outputs:
            try:
                content = self._invoker.precision.convert(self.recorded.load(leaf))
            except MissingContentError:
                continue
            found = self.workspace.find(leaf) if is_written(operation, leaf) else None
            if found is None:
                pinned[leaf.slot] = lay_out(content, leaf)
            else:
                found.data.copy_(content)
                self.workspace.add(leaf, found, operation.name)
        if operation.has_backward and pinned:
            args, kwargs = self._find_values(list(operation.arguments)), self._find_values(dict(operation.keywords))
            given = dict(tensors_by_slot(args, "input")) | dict(tensors_by_slot(kwargs, "kwargs"))
            span = self.gradients.begin(operation, args, kwargs)
            pinned = dict(pin_gradients(pinned, given, self._make_load(operation)))
            self.gradients.end(operation, span, tuple(pinned.values()))
        for leaf in operation.outputs:
            if leaf.slot in pinned:
                self.workspace.add(leaf, pinned[leaf.slot], operation.name)


def is_repeated(operation: Operation) -> bool:
    """Is it in a region that checkpointing of the older kind repeats?"""
    return operation.inside is None and is_followed_anyway(operation)


def is_written(operation: Operation, leaf: Leaf) -> bool:
    """Is this result an argument that the call wrote to?"""
    return operation.writes_in_place or leaf.slot.startswith(WRITTEN)


def find_last_uses(program: Program) -> dict[str, tuple[list[int], list[int]]]:
    """For each call the tensors and storages that nobody looks at after it."""
    last_tensor: dict[int, str] = {}
    last_storage: dict[int, str] = {}
    for operation in program.endings():
        for leaf in () if operation.is_part else leaves_of(operation):
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


def leaves_of(operation: Operation) -> Iterator[Leaf]:
    """The tensors of a call, and of those that a layer is made of."""
    yield from (*operation.inputs, *operation.outputs)
    if operation.is_layer:
        yield from operation.state
        for part in operation.children:
            yield from leaves_of(part)


def find_written(program: Program) -> frozenset[int]:
    """The storages that calls write to in place."""
    return frozenset(
        leaf.storage
        for operation in program.calls()
        for leaf in (*operation.inputs, *operation.outputs)
        if leaf.storage is not None and is_written(operation, leaf)
    )


def replace_tensors(tree: Any, told: Mapping[int, torch.Tensor]) -> Any:
    """The same lists and tuples with other tensors in them."""
    if isinstance(tree, torch.Tensor):
        return told.get(id(tree), tree)
    if isinstance(tree, (list, tuple)):
        return (tuple if isinstance(tree, tuple) else list)(replace_tensors(item, told) for item in tree)
    return tree


def describe_error(error: Exception) -> str:
    """The first line of what went wrong."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
