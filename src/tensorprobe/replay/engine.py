"""Executes a recorded step again: each call by its name, on what the calls before it gave.

Somebody who looks on (`Onlooker`) is told of each value as it comes. Nothing is kept longer than the program needs it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from tensorprobe.model.tree import map_tree
from tensorprobe.replay.argument import Leaf, UnknownArgumentError, build_arguments, iter_leaves
from tensorprobe.replay.function import UnknownFunctionError, find_function
from tensorprobe.replay.gradient import Gradients
from tensorprobe.replay.meaning.torch import DRAWS, UNDEFINED, Context, find_meaning
from tensorprobe.replay.object import make_object
from tensorprobe.replay.precision import Precision
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors
from tensorprobe.replay.workspace import Workspace

_ATOMS = (torch.Tensor, torch.Size)
RANDOM = "random"


class Onlooker(Protocol):
    """Is told what a replay computes."""

    def see_inputs(self, operation: Operation, tensors: Mapping[str, torch.Tensor]) -> None: ...

    def see_results(self, operation: Operation, tensors: Mapping[str, torch.Tensor]) -> None: ...

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None: ...


@dataclass
class Coverage:
    """What was replayed, and what was not."""

    call_count: int = 0
    replayed: int = 0
    random: int = 0
    gaps: dict[str, str] = field(default_factory=dict)
    """The calls that could not be replayed, and why: their results are those recorded."""
    decisions: dict[str, str] = field(default_factory=dict)
    """Results that are no floating-point numbers and came out otherwise: they are pinned to what was recorded."""


class NotReplayedError(Exception):
    """A call cannot be made again."""


class Replay:
    """One execution of a program."""

    def __init__(
        self, program: Program, precision: Precision, device: torch.device, onlooker: Onlooker | None = None
    ) -> None:
        self.program = program
        self.precision = precision
        self.device = device
        self.onlooker = onlooker
        self.recorded = RecordedTensors(program.rank, device)
        self.coverage = Coverage()
        self.gradients = Gradients(program, onlooker)
        self.workspace = Workspace(self.recorded, precision, self.gradients.roots, self.gradients.note_leaf)
        self._last_use = find_last_uses(program)
        self._position = 0

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
        tensors, storages = self._last_use.pop(operation.name, ((), ()))
        self.workspace.forget(tensors, storages)

    def _run_module(self, operation: Operation) -> None:
        """A module call owns no values: what goes in and comes out are those of the calls around and inside of it."""
        args = self._find_values(operation.arguments, "input")
        kwargs = self._find_values(operation.keywords, "kwargs")
        span = self.gradients.begin(operation, args, kwargs)
        for child in operation.children:
            self._run(child)
        results = self._find_values(operation.results, "output")
        self.gradients.end(operation, span, tuple(results))
        if self.onlooker is not None:
            self.onlooker.see_results(operation, dict(tensors_by_slot(results)))

    def _find_values(self, tree: Any, slot: str) -> Any:
        def find(leaf: Leaf) -> Any:
            return self.workspace.find(leaf)

        try:
            return build_arguments(tree if isinstance(tree, dict) else list(tree), slot, frozenset(), find, make_nothing)
        except UnknownArgumentError:
            return {} if isinstance(tree, dict) else []

    def _run_call(self, operation: Operation) -> None:
        self.coverage.call_count += 1
        if not operation.has_ended:
            return
        try:
            self._execute(operation)
            self.coverage.replayed += 1
        except Exception as error:  # whatever a function of torch says to its arguments
            self.coverage.gaps[operation.name] = describe_error(error)
            self._pin_results(operation)

    def _execute(self, operation: Operation) -> None:
        expected = {leaf.slot: leaf for leaf in operation.outputs}
        op = operation.op.rsplit(".", 1)[-1]
        if op in UNDEFINED and not operation.writes_in_place:
            return self._make_undefined(operation, expected)
        if op in DRAWS and not (op == "rrelu" and not operation.fields.get("generator")):
            self.coverage.random += 1
            return self._pin_results(operation)
        if operation.prefix == "Autograd":
            return self._pass_on(operation, expected)
        function = self._find(operation)
        make = self._tensor_maker(operation)
        args = build_arguments(list(operation.arguments), "input", operation.tuples, make, self._make_object)
        kwargs = build_arguments(dict(operation.keywords), "kwargs", operation.tuples, make, self._make_object)
        if operation.op in ("__getitem__", "__setitem__") and len(args) > 1 and "tuples" not in operation.fields:
            args[1] = tuple(args[1]) if isinstance(args[1], list) else args[1]
        if self.onlooker is not None:
            self.onlooker.see_inputs(operation, dict(tensors_by_slot((args, kwargs), ("input", "kwargs"))))
        span = self.gradients.begin(operation, args, kwargs)
        with self._surroundings(operation):
            output = function(*args, **kwargs)
        if output is None and operation.writes_in_place and args:
            output = args[0]
        results = self._check_results(operation, expected, output, args, kwargs)
        self.gradients.end(operation, span, output if results is None else results)
        return None

    def _check_results(
        self, operation: Operation, expected: Mapping[str, Leaf], output: Any, args: Any, kwargs: Any
    ) -> Any:
        results = list(output) if isinstance(output, tuple) else [output]
        found = dict(tensors_by_slot(results))
        for slot, leaf in expected.items():
            tensor = found.get(slot)
            if tensor is None or tuple(tensor.shape) != leaf.shape:
                shape = "nothing" if tensor is None else f"a tensor of {list(tensor.shape)}"
                raise NotReplayedError(f"it gave {shape} where {list(leaf.shape)} was recorded ({slot})")
        made = {slot: self._settle(operation, leaf, found[slot], args) for slot, leaf in expected.items()}
        for slot, leaf in expected.items():
            self.workspace.add(leaf, made[slot], operation.name)
        if self.onlooker is not None:
            self.onlooker.see_results(operation, made)
        return tuple(made.values()) if any(made[slot] is not found[slot] for slot in made) else None

    def _settle(self, operation: Operation, leaf: Leaf, tensor: torch.Tensor, args: Any) -> torch.Tensor:
        """A decision is what was recorded."""
        if leaf.is_floating or tensor.is_floating_point():
            return tensor
        try:
            recorded = self.recorded.load(leaf)
        except MissingContentError:
            return tensor
        if torch.equal(recorded, tensor.to(recorded.dtype)):
            return tensor
        self.coverage.decisions[operation.name] = leaf.slot
        return recorded.clone()

    def _find(self, operation: Operation) -> Callable[..., Any]:
        meaning = find_meaning(operation.prefix, operation.op, self.precision.is_wide)
        if meaning is None:
            return find_function(operation.prefix, operation.op)
        inputs, outputs = list(operation.inputs), list(operation.outputs)
        context = Context(
            self.precision,
            lambda number: self.recorded.load(inputs[number]),
            lambda number: self.recorded.load(outputs[number]),
            lambda: self._load_draw(operation, "mask"),
            self._make_draw(operation),
        )

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return meaning(context, *args, **kwargs)
            except LookupError:  # nothing is special about this one
                return find_function(operation.prefix, operation.op)(*args, **kwargs)

        return call

    def _make_draw(self, operation: Operation) -> Callable[[Callable[[], Any]], Any] | None:
        state = self._load_draw(operation, "generator_state")
        if state is None:
            return None

        def draw(function: Callable[[], Any]) -> Any:
            with torch.random.fork_rng(devices=()):
                torch.set_rng_state(state.cpu())
                return function()

        return draw

    def _load_draw(self, operation: Operation, role: str) -> torch.Tensor | None:
        leaf = next(iter_leaves(operation.fields.get(role), role), None)
        try:
            return self.recorded.load(leaf) if leaf is not None else None
        except MissingContentError:
            return None

    def _tensor_maker(self, operation: Operation) -> Callable[[Leaf], torch.Tensor]:
        def make(leaf: Leaf) -> torch.Tensor:
            if not leaf.fields["type"].endswith("Tensor"):
                raise UnknownArgumentError(f"an argument of type {leaf.fields['type'][:60]}")
            return self.workspace.take(leaf, operation.name)

        return make

    def _make_object(self, kind: str, value: Any) -> Any:
        return make_object(kind, value, self.precision, self.device)

    def _make_undefined(self, operation: Operation, expected: Mapping[str, Leaf]) -> None:
        """Memory that is about to be written: zeros, so that what is never written shows nowhere."""
        for leaf in expected.values():
            from tensorprobe.replay.precision import torch_dtype
            from tensorprobe.replay.workspace import lay_out

            dtype = self.precision.dtype(torch_dtype(leaf.dtype))
            tensor = lay_out(torch.zeros(leaf.shape, dtype=dtype, device=self.device), leaf)
            self.workspace.add(leaf, tensor, operation.name)

    def _pass_on(self, operation: Operation, expected: Mapping[str, Leaf]) -> None:
        """An autograd Function of the program: the calls inside it have been replayed, and made its results."""
        for leaf in expected.values():
            tensor = self.workspace.find(leaf)
            if tensor is None:
                raise NotReplayedError("what it computes is not seen")
            self.workspace.add(leaf, tensor, operation.name)

    def _pin_results(self, operation: Operation) -> None:
        """Take the recorded results for those of the call."""
        for leaf in operation.outputs:
            try:
                content = self.precision.convert(self.recorded.load(leaf))
            except MissingContentError:
                continue
            found = self.workspace.find(leaf) if operation.writes_in_place else None
            if found is not None:
                with torch.no_grad():
                    found.copy_(content)
            else:
                from tensorprobe.replay.workspace import lay_out

                found = lay_out(content, leaf)
            self.workspace.add(leaf, found, operation.name)

    @contextmanager
    def _surroundings(self, operation: Operation) -> Iterator[None]:
        is_followed = operation.fields.get("grad_enabled") is not False or operation.inside is not None
        casts = operation.fields.get("autocast") if not self.precision.is_wide else None
        with torch.set_grad_enabled(is_followed), autocast(casts):
            yield


@contextmanager
def autocast(casts: Any) -> Iterator[None]:
    from contextlib import ExitStack

    from tensorprobe.replay.precision import torch_dtype

    with ExitStack() as stack:
        for device, dtype in casts.items() if isinstance(casts, dict) else ():
            if device in ("cpu", "cuda") and isinstance(dtype, str):
                stack.enter_context(torch.autocast(device, torch_dtype(dtype)))
        yield


def tensors_by_slot(tree: Any, roots: tuple[str, ...] = ("output",)) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of arguments or results, under the names of their places."""
    trees = tree if len(roots) > 1 else (tree,)
    for root, part in zip(roots, trees, strict=True):
        found: list[tuple[str, torch.Tensor]] = []
        map_tree(part, root, lambda value, path: found.append((path, value)), _ATOMS)  # noqa: B023
        yield from ((path, value) for path, value in found if isinstance(value, torch.Tensor))


def find_last_uses(program: Program) -> dict[str, tuple[list[int], list[int]]]:
    """For each call the tensors and storages that nobody looks at after it."""
    last_tensor: dict[int, str] = {}
    last_storage: dict[int, str] = {}

    def note(operation: Operation) -> None:
        for leaf in (*operation.inputs, *operation.outputs):
            if leaf.tensor is not None:
                last_tensor[leaf.tensor] = operation.name
            if leaf.storage is not None:
                last_storage[leaf.storage] = operation.name

    def walk(operation: Operation) -> None:
        for child in operation.children:
            walk(child)
        note(operation)

    for operation in program.operations:
        walk(operation)
    found: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number, name in last_tensor.items():
        found[name][0].append(number)
    for number, name in last_storage.items():
        found[name][1].append(number)
    return found


def make_nothing(kind: str, value: Any) -> None:
    """In the place of an argument that does not matter."""
    return None


def describe_error(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__


__all__ = ["Coverage", "Onlooker", "Replay", "UnknownFunctionError"]
