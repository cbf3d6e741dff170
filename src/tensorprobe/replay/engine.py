"""Executes a recorded step again: each call by its name, on what the calls before it gave.

Somebody who looks on is told of each value as it comes. Nothing is kept longer than the program needs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from tensorprobe.capture.torch.function import UnknownFunctionError
from tensorprobe.errors import DumpError
from tensorprobe.model.name import PARAMETERS_GRAD
from tensorprobe.replay.backward_request import BackwardPasses
from tensorprobe.replay.board import Board, Steps
from tensorprobe.replay.executor import Around, Executor
from tensorprobe.replay.first_use import FirstUses
from tensorprobe.replay.gradient import Gradients
from tensorprobe.replay.invocation import Invoker, Tensors, is_followed_anyway, tensors_by_slot
from tensorprobe.replay.last_use import find_last_uses
from tensorprobe.replay.meaning.registry import MeaningError, find_kernel_meaning
from tensorprobe.replay.onlooker import Onlooker
from tensorprobe.replay.own_backward import OwnBackward
from tensorprobe.replay.participant import Participant
from tensorprobe.replay.precision import Precision
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.reason import describe_error
from tensorprobe.replay.recorded import RecordedTensors
from tensorprobe.replay.reduced_gradient import ReducedGradients
from tensorprobe.replay.result import Coverage
from tensorprobe.replay.root import Roots, find_roots
from tensorprobe.replay.schedule import run_together
from tensorprobe.replay.spread_call import SpreadCalls, is_inside_spread
from tensorprobe.replay.value import ReplaceLeaf, Values
from tensorprobe.run.call import name_call
from tensorprobe.run.leaf import STATE_ROLES

if TYPE_CHECKING:
    from tensorprobe.replay.gradient_sum import BrokenSum

_STATE = tuple(f"{role}." for role in STATE_ROLES)


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
        replace_leaf: ReplaceLeaf | None = None,
        *,
        chooses_anew: bool = False,
    ) -> None:
        """`limit`: the position of the last record that is wanted. `replace_leaf` gives a leaf another content.
        `chooses_anew`: choices are made by what is compared now, and are not those recorded."""
        self.program = program
        self._limit = limit
        self.precision, self.device = precision, device
        self.rank = program.rank.rank or 0
        self.board = Board((self.rank,))
        """Where it meets other ranks."""
        self.coverage = Coverage()
        self.onlooker = onlooker or Onlooker()
        self._advance = advance
        self.recorded = RecordedTensors(program.rank, device, program.kept, chooses_anew=chooses_anew)
        self.invoker = Invoker(self.recorded, precision, device, program.limit_bytes, program.checked)
        self.gradients = Gradients(program, self._see_recorded_gradient, ReducedGradients(program, self.rank))
        self.passes = program.backward_passes
        self.values = Values(self, replace_leaf)
        self.workspace = self.values.workspace
        self._passes = BackwardPasses(
            list(self.passes),
            self.workspace,
            self.gradients.receiver.note_failure,
            FirstUses(program).is_known,
            self.recorded.load,
        )
        self.spread = SpreadCalls(self, self.rank)
        self.participant = Participant(self, self.rank)
        self._executor = Executor(self)
        self._last_use = find_last_uses(program)
        self._made_bytes = 0

    def run(self) -> None:
        """Execute everything, forward and backward, without other ranks."""
        run_together([self])

    @cached_property
    def roots(self) -> Roots:
        """The losses."""
        return find_roots(self.program, self.passes)

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
        self.values.pin_gradients(sums)

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
                self.gradients.delivered.add((request.asked.name, leaf.name))
                self.onlooker.see_leaf_gradient(request.asked.name, leaf, gradient)
            for leaf, recorded in self._passes.find_unused(request):
                self.onlooker.see_unused_leaf(leaf, recorded)

    def _run_function(self, operation: Operation) -> Steps:
        """An autograd Function of the program: the calls inside it, then what it makes of them."""
        args, kwargs = self.values.find_arguments(operation)
        around = Around((args, kwargs), self.gradients.begin(operation, args, kwargs))
        if self._may_be_followed_otherwise(operation):
            around.own = OwnBackward(operation, self.program.gradients_of(operation))
            with around.own.around_calls(self.workspace, self.recorded, self.coverage):
                for child in operation.children:
                    yield from self._run(child)
        else:
            for child in operation.children:
                yield from self._run(child)
        if operation.position <= self._limit:
            yield from self._run_alone(operation, around)
        if not around.is_over:
            self.gradients.give_up(around.span)

    def _may_be_followed_otherwise(self, operation: Operation) -> bool:
        """Can what its own backward gave back stand for the derivative? Not where other ranks take part, nor in a pass
        inside another one."""
        is_told = operation.has_backward and self.precision.is_wide and not self.board.is_joint
        return is_told and not any(one.nested for one in self.passes)

    def _run_module(self, operation: Operation) -> Steps:
        """A module call owns no values: what goes in and comes out are those of the calls around and inside of it."""
        args, kwargs = self.values.find_arguments(operation)
        self.show_arguments(operation, args, kwargs)
        span = self.gradients.begin(operation, args, kwargs)
        for child in operation.children:
            yield from self._run(child)
        if operation.position > self._limit:
            return
        results = self.values.find_values(list(operation.results))
        self.gradients.end(operation, span, tuple(results))
        found = dict(tensors_by_slot(results, "output"))
        for leaf in operation.outputs:
            if leaf.sharding is not None and leaf.slot in found:
                part = self.spread.cut(leaf, found.pop(leaf.slot))
                found |= {leaf.slot: part} if part is not None else {}
        self.onlooker.see_results(operation, found)

    # -- what the others look at and call --------------------------------------------------------------------------

    def show_arguments(self, operation: Operation, args: Any, kwargs: Any) -> None:
        """Tell whoever looks on what a call is about to be given."""
        trees = {"input": args, "kwargs": kwargs}
        if operation.is_module or operation.is_layer:
            trees.update(self.values.find_state(operation))
        shown = {slot: tensor for role, tree in trees.items() for slot, tensor in tensors_by_slot(tree, role)}
        self.onlooker.see_arguments(operation, shown)

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        """A gradient has come, as the program would find it on this rank."""
        self.gradients.delivered.add((record, slot))
        self.onlooker.see_gradient(record, slot, gradient)

    def is_inside_spread(self, operation: Operation) -> bool:
        return is_inside_spread(operation)

    # -- calls -----------------------------------------------------------------------------------------------------

    def _see_recorded_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        if slot.startswith(_STATE):
            self.onlooker.see_state_gradient(record, slot, gradient)
            return
        leaf = self.program.gradient_leaf(record, slot)
        if leaf is not None and leaf.sharding is not None and not record.endswith(PARAMETERS_GRAD):
            part = self.spread.cut(leaf, gradient)
            if part is None:
                return
            gradient = part
        self.see_gradient(record, slot, gradient)

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
                results = yield from self._executor.execute(operation, around)
        except Exception as error:  # whatever a function of torch says to its arguments
            self._note_gap(operation, error)
            if communication is not None:
                self.participant.pin(communication)
            else:
                self._executor.pin_results(operation)
            return
        finally:
            self.participant.leave(operation)
        self.coverage.replayed += 1
        self.onlooker.see_results(operation, results)
        self.check_memory(results)

    def check_memory(self, results: Tensors) -> None:
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
        call = name_call(name)
        try:
            return call.kind == "api" and call.is_named and find_kernel_meaning(call.prefix, call.op) is not None
        except MeaningError:
            return False
