"""Executes a recorded step again: each call by its name, on what the calls before it gave.

Somebody who looks on is told of each value as it comes. Nothing is kept longer than the program needs it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from tensorprobe.capture.torch.function import UnknownFunctionError
from tensorprobe.errors import DumpError
from tensorprobe.model.name import ApiName
from tensorprobe.replay.allocation import TooLargeError
from tensorprobe.replay.argument import Leaf, UnknownArgumentError, build_arguments
from tensorprobe.replay.content_guard import UnsafeContentError
from tensorprobe.replay.gradient import Gradients
from tensorprobe.replay.invocation import (
    Invoker,
    NotReplayedError,
    Tensors,
    is_random,
    is_undefined,
    tensors_by_slot,
)
from tensorprobe.replay.meaning.registry import MeaningError, find_kernel_meaning
from tensorprobe.replay.precision import Precision, torch_dtype
from tensorprobe.replay.program import STATE_ROLES, Operation, Program, parse_or_none
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors
from tensorprobe.replay.result import Coverage, Decision
from tensorprobe.replay.workspace import Workspace, lay_out


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


class Replay:
    """One execution of a program."""

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
        self.coverage = Coverage()
        self._onlooker = onlooker or Onlooker()
        self._advance = advance
        self.recorded = RecordedTensors(program.rank, device)
        self._invoker = Invoker(self.recorded, precision, device, program.limit_bytes)
        self._invoker.note_choice = self._note_choice
        self.gradients = Gradients(program, self._onlooker)
        self.workspace = Workspace(self.recorded, self._read_leaf, self.gradients.roots)
        self._last_use = find_last_uses(program)
        self._written = find_written(program)
        self._made_bytes = 0

    def run(self) -> None:
        """Execute everything, forward and backward."""
        for operation in self.program.operations:
            self._run(operation)
        self.gradients.run_passes(self.workspace, self._limit)
        for where, error in self.gradients.receiver.failures:
            self.coverage.gaps.setdefault(where, describe_error(error))

    def _read_leaf(self, leaf: Leaf) -> torch.Tensor:
        content = self._invoker.precision.convert(self.recorded.load(leaf))
        if self._replace_leaf is not None:
            content = self._replace_leaf(leaf, content)
        tensor = lay_out(content, leaf)
        if leaf.is_floating and leaf.requires_grad:
            tensor.requires_grad_()
            self.gradients.note_leaf(leaf, tensor)
        return tensor

    def _run(self, operation: Operation) -> None:
        if operation.is_module:
            self._run_module(operation)
        elif operation.position <= self._limit:
            self.gradients.run_passes(self.workspace, operation.position)
            self._run_call(operation)
        self.workspace.forget(*self._last_use.pop(operation.name, ((), ())))

    def _run_module(self, operation: Operation) -> None:
        """A module call owns no values: what goes in and comes out are those of the calls around and inside of it."""
        args, kwargs = self._find_values(list(operation.arguments)), self._find_values(dict(operation.keywords))
        self._show_arguments(operation, args, kwargs)
        span = self.gradients.begin(operation, args, kwargs)
        for child in operation.children:
            self._run(child)
        if operation.position > self._limit:
            return
        results = self._find_values(list(operation.results))
        self.gradients.end(operation, span, tuple(results))
        self._onlooker.see_results(operation, dict(tensors_by_slot(results, "output")))

    def _show_arguments(self, operation: Operation, args: Any, kwargs: Any) -> None:
        trees = {"input": args, "kwargs": kwargs}
        if operation.is_module:
            find = partial(self._take_state, operation)
            trees.update((role, self._find_values(operation.state(role), find)) for role in STATE_ROLES)
        shown = {slot: tensor for role, tree in trees.items() for slot, tensor in tensors_by_slot(tree, role)}
        self._onlooker.see_arguments(operation, shown)

    def _take_state(self, operation: Operation, leaf: Leaf) -> torch.Tensor | None:
        """A parameter or buffer may be looked at by its module first."""
        try:
            return self.workspace.take(leaf, operation.name)
        except MissingContentError:
            return None

    def _find_values(self, tree: Any, find: Callable[[Leaf], torch.Tensor | None] | None = None) -> Any:
        """A recorded tree with the tensors that stand for what is in it, and None for everything else."""
        try:
            return build_arguments(tree, "", frozenset(), find or self.workspace.find, lambda kind, value: None)
        except (
            UnknownArgumentError,
            RuntimeError,
        ):  # a text that was shortened: no tensor is missed by leaving out all
            return type(tree)()

    def _run_call(self, operation: Operation) -> None:
        self.coverage.call_count += 1
        self._advance()
        if not operation.has_ended:
            return
        try:
            results = self._execute(operation)
        except Exception as error:  # whatever a function of torch says to its arguments
            self._note_gap(operation, error)
            self._pin_results(operation)
            return
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

    def _execute(self, operation: Operation) -> Tensors:
        """What it gives; nothing where that is not computed."""
        if is_undefined(operation) and not operation.writes_in_place:
            self._make_undefined(operation)
            return {}
        if is_random(operation):
            self.coverage.random += 1
            self._pin_results(operation)
            return {}
        if operation.prefix == "Autograd":
            return self._execute_function(operation)
        return self._call(operation)

    def _execute_function(self, operation: Operation) -> Tensors:
        """An autograd Function of the program: by its meaning, where it has one, else by the calls inside it."""
        kernel = self._invoker.find_kernel(operation)
        if kernel is None:
            return self._pass_on(operation)
        try:
            return self._call(operation)
        except MeaningError:
            if kernel.is_built_in and self._is_made(operation):  # another Function of the same name
                return self._pass_on(operation)
            raise

    def _is_made(self, operation: Operation) -> bool:
        return all(self.workspace.find(leaf) is not None for leaf in operation.outputs)

    def _call(self, operation: Operation) -> Tensors:
        given: dict[int, Leaf] = {}

        def take(leaf: Leaf) -> torch.Tensor:
            tensor = self.workspace.take(leaf, operation.name)
            given[id(tensor)] = leaf
            return tensor

        args, kwargs = self._invoker.build_arguments(operation, take)
        self._show_arguments(operation, args, kwargs)
        span = self.gradients.begin(operation, args, kwargs)
        output, found = self._invoker.invoke(operation, args, kwargs)
        output, found = self._tell_apart(operation, given, output, found)
        self.gradients.end(operation, span, output)
        return self._add_results(operation, found)

    def _tell_apart(
        self, operation: Operation, given: Mapping[int, Leaf], output: Any, found: Tensors
    ) -> tuple[Any, Tensors]:
        """A cast means nothing in float64, and torch returns what it was given. Where the program got another tensor,
        this one gets another, too: it is another place in the graph, and may be written to."""
        told: dict[int, torch.Tensor] = {}
        for leaf in () if operation.writes_in_place else operation.outputs:
            tensor = found[leaf.slot]
            taken = given.get(id(tensor))
            if taken is not None and taken.tensor is not None and taken.tensor != leaf.tensor:
                is_written = leaf.storage in self._written or taken.storage in self._written
                told[id(tensor)] = tensor.clone() if is_written else tensor.view_as(tensor)
        if not told:
            return output, found
        return replace_tensors(output, told), {slot: told.get(id(tensor), tensor) for slot, tensor in found.items()}

    def _add_results(self, operation: Operation, found: Tensors) -> Tensors:
        results = {}
        for leaf in operation.outputs:
            tensor = found[leaf.slot]
            if not (leaf.is_floating or tensor.is_floating_point() or tensor.is_complex()):
                tensor = self._decide(operation, leaf, tensor)
            results[leaf.slot] = tensor
            self.workspace.add(leaf, tensor, operation.name)
        return results

    def _decide(self, operation: Operation, leaf: Any, tensor: torch.Tensor) -> torch.Tensor:
        """A choice, a mask, an index: the program went on with the one that was recorded."""
        try:
            recorded = self.recorded.load(leaf)
        except MissingContentError:
            return tensor
        if torch.equal(recorded, tensor.to(recorded.dtype)):
            return tensor
        differing = int((recorded != tensor.to(recorded.dtype)).sum())
        self.coverage.decisions[operation.name] = Decision(differing, tensor.numel(), None)
        return recorded.clone()

    def _note_choice(self, operation: Operation, distance: torch.Tensor) -> None:
        if bool(distance.any()):
            decision = Decision(int(distance.count_nonzero()), distance.numel(), float(distance.max()))
            self.coverage.decisions[operation.name] = decision

    def _make_undefined(self, operation: Operation) -> None:
        """Memory that is about to be written: zeros, so that what is never written shows nowhere."""
        self._invoker.allocation.check_bytes(8 * sum(leaf.element_count for leaf in operation.outputs))
        for leaf in operation.outputs:
            dtype = self._invoker.precision.dtype(torch_dtype(leaf.dtype))
            zeros = torch.zeros(leaf.shape, dtype=dtype, device=self._invoker.device)
            self.workspace.add(leaf, lay_out(zeros, leaf), operation.name)

    def _pass_on(self, operation: Operation) -> Tensors:
        """An autograd Function of the program: the calls inside it have been replayed, and made its results."""
        results = {}
        for leaf in operation.outputs:
            tensor = self.workspace.find(leaf)
            if tensor is None:
                raise UnknownFunctionError("it made no recorded calls that give its results")
            results[leaf.slot] = tensor
            self.workspace.add(leaf, tensor, operation.name)
        return results

    def _pin_results(self, operation: Operation) -> None:
        """Take the recorded results for those of the call."""
        args, kwargs = self._find_values(list(operation.arguments)), self._find_values(dict(operation.keywords))
        self._show_arguments(operation, args, kwargs)
        pinned = {}
        for leaf in operation.outputs:
            try:
                content = self._invoker.precision.convert(self.recorded.load(leaf))
            except MissingContentError:
                continue
            found = self.workspace.find(leaf) if operation.writes_in_place else None
            try:
                with torch.no_grad():
                    found = found.copy_(content) if found is not None else lay_out(content, leaf)
            except RuntimeError:  # memory that cannot be written to: a dump that is not what was executed
                found = lay_out(content, leaf)
            self.workspace.add(leaf, found, operation.name)
            pinned[leaf.slot] = found
        self._onlooker.see_pinned(operation, pinned)


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


def find_written(program: Program) -> frozenset[int]:
    """The storages that calls write to in place."""
    return frozenset(
        leaf.storage
        for operation in program.calls()
        if operation.writes_in_place
        for leaf in (*operation.inputs, *operation.outputs)
        if leaf.storage is not None
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
