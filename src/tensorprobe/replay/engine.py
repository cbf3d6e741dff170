"""Executes a recorded step again: each call by its name, on what the calls before it gave.

Somebody who looks on is told of each value as it comes. Nothing is kept longer than the program needs it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tensorprobe.capture.torch.function import UnknownFunctionError
from tensorprobe.capture.torch.gradient import Span
from tensorprobe.errors import DumpError
from tensorprobe.model.name import PARAMETERS_GRAD, ApiName
from tensorprobe.replay.allocation import TooLargeError
from tensorprobe.replay.argument import Leaf, UnknownArgumentError, build_arguments
from tensorprobe.replay.backward_pass import LeafGradient
from tensorprobe.replay.backward_request import BackwardPasses
from tensorprobe.replay.board import Board, Steps
from tensorprobe.replay.content_guard import UnsafeContentError
from tensorprobe.replay.decision import find_margin
from tensorprobe.replay.gradient import Gradients
from tensorprobe.replay.invocation import (
    Invoker,
    NotReplayedError,
    Tensors,
    is_followed_anyway,
    is_random,
    is_undefined,
    tensors_by_slot,
)
from tensorprobe.replay.meaning.registry import MeaningError, find_kernel_meaning
from tensorprobe.replay.participant import Participant
from tensorprobe.replay.pin import Load, pin_gradients
from tensorprobe.replay.precision import Precision, torch_dtype
from tensorprobe.replay.program import STATE_ROLES, WRITTEN, Operation, Program, backward_leaves, parse_or_none
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors
from tensorprobe.replay.reduced_gradient import ReducedGradients
from tensorprobe.replay.region import Regions
from tensorprobe.replay.result import Coverage, Decision
from tensorprobe.replay.schedule import run_together
from tensorprobe.replay.spread import part_leaf
from tensorprobe.replay.spread_call import SpreadCalls, is_inside_spread, is_spread_call
from tensorprobe.replay.workspace import Workspace, lay_out

if TYPE_CHECKING:
    from tensorprobe.replay.gradient_sum import BrokenSum

Given = tuple[list[Any], dict[str, Any]]
"""The arguments of a call."""


class Onlooker:
    """Is told what a replay computes. Tensors that it wants to keep it must copy: calls write in place."""

    roots: frozenset[int] = frozenset()
    """The tensors from which gradients will be asked for."""

    def see_arguments(self, operation: Operation, tensors: Tensors) -> None:
        """A call is about to be given these."""

    def see_pinned(self, operation: Operation, tensors: Tensors) -> None:
        """A call could not be made again: these are its recorded results."""

    def see_results(self, operation: Operation, tensors: Tensors) -> None:
        """A call has returned these."""

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        """A gradient has come, of the name that it was recorded by."""

    def see_leaf_gradient(self, record: str, leaf: LeafGradient, gradient: torch.Tensor) -> None:
        """A backward pass is over, and this is what it leaves in `.grad`."""


class Onlookers(Onlooker):
    """Several that look on together."""

    def __init__(self, *onlookers: Onlooker) -> None:
        self._onlookers = onlookers

    def see_arguments(self, operation: Operation, tensors: Tensors) -> None:
        for onlooker in self._onlookers:
            onlooker.see_arguments(operation, tensors)

    def see_pinned(self, operation: Operation, tensors: Tensors) -> None:
        for onlooker in self._onlookers:
            onlooker.see_pinned(operation, tensors)

    def see_results(self, operation: Operation, tensors: Tensors) -> None:
        for onlooker in self._onlookers:
            onlooker.see_results(operation, tensors)

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        for onlooker in self._onlookers:
            onlooker.see_gradient(record, slot, gradient)

    def see_leaf_gradient(self, record: str, leaf: LeafGradient, gradient: torch.Tensor) -> None:
        for onlooker in self._onlookers:
            onlooker.see_leaf_gradient(record, leaf, gradient)


class Replay:
    """One execution of the program of one rank."""

    def __init__(
        self,
        program: Program,
        precision: Precision,
        device: torch.device,
        onlooker: Onlooker | None = None,
        advance: Callable[[], None] = lambda: None,
        limit: float = math.inf,
        replace_leaf: Callable[[Leaf, torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        """`limit`: the position of the last record that is wanted. `replace_leaf` gives a leaf another content."""
        self._replace_leaf = replace_leaf
        self.program = program
        self._limit = limit
        self.precision, self.device = precision, device
        self.rank = program.rank.rank or 0
        self.board = Board((self.rank,))
        """Where it meets other ranks."""
        self.coverage = Coverage()
        self._onlooker = onlooker or Onlooker()
        self._advance = advance
        self.recorded = RecordedTensors(program.rank, device)
        self.invoker = Invoker(self.recorded, precision, device, program.limit_bytes)
        self.invoker.note_choice = self._note_choice
        self.gradients = Gradients(program, self._see_recorded_gradient, ReducedGradients(program, self.rank))
        self.passes = program.backward_passes
        kept = (number for one in self.passes for number in one.used_tensors())
        self.workspace = Workspace(self.recorded, self._read_leaf, kept)
        self.workspace.note_leaf = self._note_leaf
        self._passes = BackwardPasses(list(self.passes), self.workspace, self.gradients.receiver.note_failure)
        self._pinned: dict[tuple[str | None, str | int | None], Leaf] = {}
        self._regions = Regions(self.gradients.tell_parameter)
        self.spread = SpreadCalls(self, self.rank)
        self.participant = Participant(self, self.rank)
        self._last_use = find_last_uses(program)
        self._written = find_written(program)
        self._made_bytes = 0

    def run(self) -> None:
        """Execute everything, forward and backward, without other ranks."""
        run_together([self])

    @property
    def roots(self) -> frozenset[int]:
        """The tensors from which gradients are asked for."""
        found = (root.tensor for one in self.passes for root in one.roots if root is not None)
        return frozenset(number for number in found if number is not None)

    def steps(self) -> Steps:
        """Execute everything, and stop wherever other ranks must come first."""
        try:
            for operation in self.program.operations:
                yield from self._run(operation)
            yield from self._run_passes(self._limit)
        finally:
            self.invoker.close()
        for where, error in self.gradients.receiver.failures:
            self.coverage.gaps.setdefault(where, describe_error(error))

    def pin_gradients(self, sums: Iterable[BrokenSum]) -> None:
        """Where something changed a gradient on its way, go on with the one that was recorded."""
        for one in sums:
            place = one.tensor.slot if one.maker is not None else one.tensor.tensor
            self._pinned[one.maker, place] = one.gradient

    def _run(self, operation: Operation) -> Steps:
        if operation.is_module:
            yield from self._run_module(operation)
        elif operation.children and not operation.is_layer:
            yield from self._run_function(operation)
        elif operation.position <= self._limit:
            yield from self._run_alone(operation)
        tensors, storages = self._last_use.pop(operation.name, ((), ()))
        self.workspace.forget(tensors, storages)
        self.spread.tensors.forget(tensors, storages)

    def _run_alone(self, operation: Operation, around: Around | None = None) -> Steps:
        yield from self._run_passes(operation.position)
        self.participant.bring_started(operation.position)
        yield from self._run_call(operation, around)

    def _run_passes(self, position: float) -> Steps:
        while (request := self._passes.next(position, is_joint=self.board.is_joint)) is not None:
            yield request
            yield from self.gradients.reduced.end_pass(self, request.asked.position)
            for leaf, gradient in self._passes.take_results(request):
                self._onlooker.see_leaf_gradient(request.asked.name, leaf, gradient)

    def _run_function(self, operation: Operation) -> Steps:
        """An autograd Function of the program: the calls inside it, then what it makes of them."""
        args, kwargs = self._find_values(list(operation.arguments)), self._find_values(dict(operation.keywords))
        around = Around((args, kwargs), self.gradients.begin(operation, args, kwargs))
        for child in operation.children:
            yield from self._run(child)
        if operation.position <= self._limit:
            yield from self._run_alone(operation, around)
        if not around.is_over:
            self.gradients.give_up(around.span)

    def _run_module(self, operation: Operation) -> Steps:
        """A module call owns no values: what goes in and comes out are those of the calls around and inside of it."""
        args, kwargs = self._find_values(list(operation.arguments)), self._find_values(dict(operation.keywords))
        self.show_arguments(operation, args, kwargs)
        span = self.gradients.begin(operation, args, kwargs)
        for child in operation.children:
            yield from self._run(child)
        if operation.position > self._limit:
            return
        results = self._find_values(list(operation.results))
        self.gradients.end(operation, span, tuple(results))
        found = dict(tensors_by_slot(results, "output"))
        for leaf in operation.outputs:
            if leaf.sharding is not None and leaf.slot in found:
                part = self.spread.cut(leaf, found.pop(leaf.slot))
                found |= {leaf.slot: part} if part is not None else {}
        self._onlooker.see_results(operation, found)

    def _take_state(self, operation: Operation, leaf: Leaf) -> torch.Tensor | None:
        """A parameter or buffer may be looked at by its module first."""
        if leaf.sharding is not None:
            return self.spread.find(leaf)
        try:
            return self.workspace.take(leaf, operation.name)
        except MissingContentError:
            return None

    def _find_values(self, tree: Any, find: Callable[[Leaf], torch.Tensor | None] | None = None) -> Any:
        """A recorded tree with the tensors that stand for what is in it, and None for everything else."""
        try:
            return build_arguments(tree, "", frozenset(), find or self._find, lambda kind, value: None)
        except (UnknownArgumentError, RuntimeError):  # a shortened text: no tensor is missed by leaving out all
            return type(tree)()

    def _find(self, leaf: Leaf) -> torch.Tensor | None:
        if leaf.sharding is not None:
            return self.spread.find(leaf)
        found = self.workspace.find_followed(leaf)
        if found is None and leaf.requires_grad and leaf.source is None:  # a leaf that the calls inside are given
            try:
                return self.workspace.take(leaf, "a module")
            except MissingContentError:
                return None
        return found

    # -- what the others look at and call --------------------------------------------------------------------------

    def show_arguments(self, operation: Operation, args: Any, kwargs: Any) -> None:
        """Tell whoever looks on what a call is about to be given."""
        trees = {"input": args, "kwargs": kwargs}
        if operation.is_module or operation.is_layer:
            find = partial(self._take_state, operation)
            trees.update((role, self._find_values(operation.state(role), find)) for role in STATE_ROLES)
        shown = {slot: tensor for role, tree in trees.items() for slot, tensor in tensors_by_slot(tree, role)}
        self._onlooker.see_arguments(operation, shown)

    def take(self, leaf: Leaf, operation: Operation) -> torch.Tensor:
        """The tensor that a call is given at this place."""
        part = self.spread.find_part(leaf) if self.workspace.find(leaf) is None else None
        if part is not None:
            self.workspace.add(leaf, part, None)
        return self.workspace.take(leaf, operation.name)

    def read_part(self, leaf: Leaf) -> torch.Tensor:
        """This rank's part of a distributed tensor: what stands for its memory, or from its file."""
        found = self.workspace.find(part_leaf(leaf))
        if found is None:
            return self._read_leaf(leaf)
        if leaf.requires_grad and not found.requires_grad:
            found = found.detach().requires_grad_()
            self.gradients.note_leaf(leaf, found)
        return found

    def read_recorded(self, leaf: Leaf) -> torch.Tensor:
        """What was recorded, as a tensor of the replay. MissingContentError where the dump has not got it."""
        return lay_out(self.precision.convert(self.recorded.load(leaf)), leaf)

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        """A gradient has come, as the program would find it on this rank."""
        self.gradients.delivered.add((record, slot))
        self._onlooker.see_gradient(record, slot, gradient)

    def is_inside_spread(self, operation: Operation) -> bool:
        return is_inside_spread(operation)

    # -- calls -----------------------------------------------------------------------------------------------------

    def _see_recorded_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        leaf = self.program.gradient_leaf(record, slot)
        if leaf is not None and leaf.sharding is not None and not record.endswith(PARAMETERS_GRAD):
            part = self.spread.cut(leaf, gradient)
            if part is None:
                return
            gradient = part
        self.see_gradient(record, slot, gradient)

    def _read_leaf(self, leaf: Leaf) -> torch.Tensor:
        content = self.precision.convert(self.recorded.load(leaf))
        if self._replace_leaf is not None:
            content = self._replace_leaf(leaf, content)
        tensor = lay_out(content, leaf)
        if leaf.is_floating and leaf.requires_grad:
            self._note_leaf(leaf, tensor.requires_grad_())
        return tensor

    def _note_leaf(self, leaf: Leaf, tensor: torch.Tensor) -> None:
        self.gradients.note_leaf(leaf, tensor)
        self._pin_gradient(tensor, None, leaf.tensor)

    def _pin_gradient(self, tensor: torch.Tensor, maker: str | None, place: str | int | None) -> None:
        leaf = self._pinned.get((maker, place))
        if leaf is not None and tensor.requires_grad:
            content = self.precision.convert(self.recorded.load(leaf))
            tensor.register_hook(lambda _: content)

    def _run_call(self, operation: Operation, around: Around | None = None) -> Steps:
        self.coverage.call_count += 1
        self._advance()
        if not operation.has_ended:
            return
        communication = self.participant.find(operation)
        self.workspace.follows_all = is_followed_anyway(operation)
        try:
            yield from self.participant.enter(operation)
            if communication is not None:
                results = yield from self.participant.execute(communication)
            else:
                results = yield from self._execute(operation, around)
        except Exception as error:  # whatever a function of torch says to its arguments
            self._note_gap(operation, error)
            if communication is not None:
                self.participant.pin(communication)
            else:
                self._pin_results(operation)
            return
        finally:
            self.participant.leave(operation)
        self.coverage.replayed += 1
        self._onlooker.see_results(operation, results)
        self._check_memory(results)

    def _check_memory(self, results: Tensors) -> None:
        """What is alive stays within the limit, whatever the dump says of who shares memory with whom."""
        self._made_bytes += sum(tensor.nbytes for tensor in results.values())
        if self._made_bytes > self.program.limit_bytes:
            self._made_bytes = self.workspace.count_bytes()
            if self._made_bytes > self.program.limit_bytes:
                raise DumpError(
                    f"Replaying {self.program.rank.name} takes more than {self.program.limit_bytes / 2**30:,.1f} GiB "
                    "of memory, the limit here: say --memory GIB if there is more."
                )

    def _note_gap(self, operation: Operation, error: Exception) -> None:
        if operation.inside is not None and self._has_meaning(operation.inside):
            self.coverage.call_count -= 1  # a part of a kernel whose meaning is known
            return
        self.coverage.gaps[operation.name] = describe_error(error)
        if isinstance(error, UnknownFunctionError):
            stem = f"{operation.prefix}.{operation.op}".removesuffix(".default")
            self.coverage.without_meaning.setdefault(stem, operation.name)

    def _has_meaning(self, name: str) -> bool:
        """Is it known what an autograd Function computes?"""
        parsed = parse_or_none(name)
        try:
            return isinstance(parsed, ApiName) and find_kernel_meaning(parsed.prefix, parsed.name) is not None
        except MeaningError:
            return False

    def _execute(self, operation: Operation, around: Around | None) -> Steps:
        """What it gives; nothing where that is not computed."""
        if is_inside_spread(operation):  # it is carried out with what it is inside of
            return {}
        if is_spread_call(operation):
            return (yield from self.spread.execute(operation))
        if is_undefined(operation) and not operation.writes_in_place:
            self._make_undefined(operation)
            return {}
        if is_random(operation) and not (operation.has_backward and operation.framework == "pytorch"):
            self.coverage.random += 1
            self._pin_results(operation)
            return {}
        if operation.is_layer:
            return self._run_layer(operation)
        if operation.is_function:
            return self._execute_function(operation, around)
        return self._call(operation)

    def _execute_function(self, operation: Operation, around: Around | None) -> Tensors:
        """An autograd Function of the program: by its meaning, where it has one, else by the calls inside it."""
        kernel = self.invoker.find_kernel(operation)
        if kernel is not None:
            try:
                return self._call(operation)
            except MeaningError:
                if not kernel.is_built_in or not self._is_made(operation):
                    raise  # else it is another Function of the same name
        return self._pass_on(operation, around)

    def _is_made(self, operation: Operation) -> bool:
        return all(self.workspace.find(leaf) is not None for leaf in operation.outputs)

    def _run_layer(self, operation: Operation) -> Tensors:
        """A layer that is one record: the calls that it is made of give its results. If one of them fails, it does."""
        args, kwargs = self._find_values(list(operation.arguments)), self._find_values(dict(operation.keywords))
        self.show_arguments(operation, args, kwargs)
        span = self.gradients.begin(operation, args, kwargs)
        try:
            for part in operation.children:
                self._call(part)
            results = self._find_results(operation)
        except Exception:
            self.gradients.give_up(span)
            raise
        self.gradients.end(operation, span, tuple(results.values()))
        self._add_made(operation, results)
        return results

    def _call(self, operation: Operation) -> Tensors:
        given: dict[int, Leaf] = {}
        if not is_repeated(operation):
            self._regions.leave()

        def take(leaf: Leaf) -> torch.Tensor:
            tensor = self.take(leaf, operation)
            if is_repeated(operation):
                tensor = self._regions.take(tensor)
            given[id(tensor)] = leaf
            return tensor

        args, kwargs = self.invoker.build_arguments(operation, take)
        if not operation.is_part:
            self.show_arguments(operation, args, kwargs)
        span = self.gradients.begin(operation, args, kwargs)
        output, found = self.invoker.invoke(operation, args, kwargs)
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
        self.invoker.allocation.check_bytes(8 * sum(leaf.element_count for leaf in operation.outputs))
        for leaf in operation.outputs:
            dtype = self.precision.dtype(torch_dtype(leaf.dtype))
            zeros = torch.zeros(leaf.shape, dtype=dtype, device=self.device)
            self.workspace.add(leaf, lay_out(zeros, leaf), operation.name)

    def _pass_on(self, operation: Operation, around: Around | None) -> Tensors:
        """An autograd Function of the program: the calls inside it have been replayed, and made its results."""
        results = self._find_results(operation)
        if around is not None and operation.name not in self.participant.flow.communicating:
            results = self._follow_function(operation, around, results)
        self._add_made(operation, results)
        return results

    def _find_results(self, operation: Operation) -> dict[str, torch.Tensor]:
        """What the calls inside it have made of its results."""
        results: dict[str, torch.Tensor] = {}
        for leaf in operation.outputs:
            tensor = self.workspace.find(leaf)
            if tensor is None:
                raise UnknownFunctionError("it made no recorded calls that give its results")
            results[leaf.slot] = tensor
        return results

    def _add_made(self, operation: Operation, results: Tensors) -> None:
        for leaf in operation.outputs:
            self.workspace.add(leaf, results[leaf.slot], operation.name)

    def _follow_function(
        self, operation: Operation, around: Around, results: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Its gradients: in float64 the derivative of the calls inside it, else what its own backward has given."""
        args, kwargs = around.given
        given = dict(tensors_by_slot(args, "input")) | dict(tensors_by_slot(kwargs, "kwargs"))
        is_new = not {id(tensor) for tensor in given.values()} & {id(tensor) for tensor in results.values()}
        if operation.has_backward and is_new and not self.precision.is_wide:
            self.gradients.give_up(around.span)
            around.span = self.gradients.begin(operation, args, kwargs)
            results = dict(pin_gradients(results, given, self._make_load(operation)))
        self.gradients.end(operation, around.span, tuple(results.values()))
        around.is_over = True
        return results

    def _make_load(self, operation: Operation) -> Load:
        """Reads the recorded gradients of a call's arguments."""
        _, departing = backward_leaves(self.program.gradients.get(operation.backward_name, {}))

        def load(slot: str) -> torch.Tensor | None:
            leaf = departing.get(slot)
            try:
                return self.precision.convert(self.recorded.load(leaf)) if leaf is not None else None
            except MissingContentError:
                return None

        return load

    def _pin_results(self, operation: Operation) -> None:
        """Take the recorded results for those of the call, and the recorded gradients for those of its arguments."""
        args, kwargs = self._find_values(list(operation.arguments)), self._find_values(dict(operation.keywords))
        self.show_arguments(operation, args, kwargs)
        made: dict[str, torch.Tensor] = {}
        written: dict[str, torch.Tensor] = {}
        for leaf in operation.outputs:
            try:
                content = self.precision.convert(self.recorded.load(leaf))
            except MissingContentError:
                continue
            if leaf.sharding is not None:
                self.spread.pin(leaf, content)
                continue
            found = self.workspace.find(leaf) if is_written(operation, leaf) else None
            if found is not None and write_into(found, content):
                written[leaf.slot] = found
            else:
                made[leaf.slot] = lay_out(content, leaf)
        if operation.has_backward and made:
            given = dict(tensors_by_slot(args, "input")) | dict(tensors_by_slot(kwargs, "kwargs"))
            span = self.gradients.begin(operation, args, kwargs)
            made = dict(pin_gradients(made, given, self._make_load(operation)))
            self.gradients.end(operation, span, tuple(made.values()))
        pinned = written | made
        for leaf in operation.outputs:
            if leaf.slot in pinned:
                self.workspace.add(leaf, pinned[leaf.slot], operation.name)
        self._onlooker.see_pinned(operation, pinned)


@dataclass
class Around:
    """What is followed around the calls inside a Function."""

    given: Given
    span: Span | None
    is_over: bool = False


def write_into(memory: torch.Tensor, content: torch.Tensor) -> bool:
    """No, where it cannot be written to: a dump that is not what was executed."""
    try:
        memory.data.copy_(content)
    except RuntimeError:
        return False
    return True


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
        yield from operation.state_leaves
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


_OWN_ERRORS = (
    MeaningError,
    MissingContentError,
    NotReplayedError,
    TooLargeError,
    UnknownArgumentError,
    UnknownFunctionError,
    UnsafeContentError,
)


def describe_error(error: BaseException) -> str:
    """The first line of what went wrong."""
    lines = str(error).strip().splitlines()
    if isinstance(error, _OWN_ERRORS) and lines:
        return lines[0][:400]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
