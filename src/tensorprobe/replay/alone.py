"""One recorded call alone: replayed in float64 on its own recorded inputs, with the gradient that it was given.

What it then differs by is its own error, whatever came before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import torch

from tensorprobe.capture.torch.function import UnknownFunctionError
from tensorprobe.replay.communication import Communication
from tensorprobe.replay.exchange import exchange
from tensorprobe.replay.invocation import Invoker, Tensors
from tensorprobe.replay.precision import Precision, widen_dtype
from tensorprobe.replay.program import Operation
from tensorprobe.replay.recorded import RecordedTensors
from tensorprobe.replay.workspace import Workspace
from tensorprobe.run.leaf import Leaf

_DRAWS = 2
"""So many times inputs are rounded, to see what rounding does."""
_NOISE_DRAWS = 4
"""So many times a call is made in its recorded precision, to see how its results scatter."""


Change = Callable[[torch.Tensor, torch.dtype], torch.Tensor]
"""Moves each element of a tensor as rounding in this dtype may."""


class LoneCall:
    """One call on its recorded inputs. MissingContentError, or whatever torch says, where it cannot be made."""

    def __init__(self, invoker: Invoker, operation: Operation, arriving: Mapping[str, Leaf]) -> None:
        self._invoker = invoker
        self._operation = operation
        self._arriving = {slot: leaf for slot, leaf in arriving.items() if leaf.is_floating}
        self._given: dict[str, torch.Tensor] = {}
        kernel = invoker.find_kernel(operation)
        self.meaning = kernel.description if kernel is not None else ""
        """What it is held against, where that is not the function of its name."""
        self._twins: dict[str, list[str]] = {}
        """Places that were given the tensor of an earlier one, by that one."""
        self.results = self._invoke(self._given, keep)

    @cached_property
    def gradients(self) -> Tensors:
        """The derivative at the recorded inputs, for the gradient that was recorded: by the places of the inputs."""
        return self._differentiate(self.results, self._given, keep)

    def find_places(self, slot: str) -> list[str]:
        """All places in which the tensor in this one was given: its gradient is the sum of theirs."""
        found = ([first, *others] for first, others in self._twins.items() if slot == first or slot in others)
        return next(found, [slot])

    def find_sensitivities(self, slot: str) -> Iterator[float]:
        """How far a result moves when what goes in is rounded by one unit, then by what is rounded on the way."""
        yield _distance((self._find(slot, make_rounding(draw)) for draw in range(_DRAWS)), self.results[slot])
        yield self._find_noise(slot)

    def find_gradient_sensitivities(self, slot: str) -> Iterator[float]:
        """The same for a gradient."""
        moved = (self._find_gradient(slot, make_rounding(draw)) for draw in range(_DRAWS))
        yield _distance(moved, self.gradients[slot])
        yield self._find_noise(slot, is_gradient=True)

    def _find(self, slot: str, change: Change) -> torch.Tensor:
        return self._invoke({}, change)[slot].detach()

    def _find_gradient(self, slot: str, change: Change) -> torch.Tensor:
        given: dict[str, torch.Tensor] = {}
        return self._differentiate(self._invoke(given, change), given, change)[slot]

    def _find_noise(self, slot: str, *, is_gradient: bool = False) -> float:
        """How far the same call in its recorded precision scatters about the truth, from one input to its neighbours:
        what it rounds on its way may be larger than what goes in and what comes out. What errs alike on all of them is
        no rounding, and does not count."""
        wide = self._invoker
        narrow = Invoker(wide.recorded, Precision("recorded"), wide.device, wide.allocation.limit_bytes)
        try:
            other = type(self)(narrow, self._operation, self._arriving)
            errors = []
            for draw in range(_NOISE_DRAWS):
                change = make_neighbour(draw)
                found = [(one._find_gradient if is_gradient else one._find)(slot, change) for one in (other, self)]
                errors.append(found[0].to(found[1].dtype) - found[1])
            middle = sum(errors) / len(errors)
            return _distance(errors, middle) if isinstance(middle, torch.Tensor) else 0.0
        except Exception:  # this precision has no such kernel here: then rounding is what it does to the inputs
            return 0.0
        finally:
            narrow.close()

    def _invoke(self, given: dict[str, torch.Tensor], change: Change) -> Tensors:
        operation = self._operation
        made: dict[int, tuple[str, torch.Tensor]] = {}

        def make(leaf: Leaf) -> torch.Tensor:
            if leaf.tensor is not None and leaf.tensor in made:
                first, tensor = made[leaf.tensor]
                self._note_twin(first, leaf.slot)
                return tensor
            tensor = self._read(leaf, change)
            if leaf.is_floating and leaf.requires_grad:
                given[leaf.slot] = tensor.requires_grad_()
                tensor = tensor.clone() if operation.writes_in_place else tensor
            if leaf.tensor is not None:
                made[leaf.tensor] = leaf.slot, tensor
            return tensor

        args, kwargs = self._invoker.build_arguments(operation, make)
        with torch.enable_grad():
            return self._invoker.invoke(operation, args, kwargs)[1]

    def _note_twin(self, first: str, slot: str) -> None:
        twins = self._twins.setdefault(first, [])
        if slot not in twins:
            twins.append(slot)

    def _read(self, leaf: Leaf, change: Change) -> torch.Tensor:
        recorded = self._invoker.recorded.load(leaf)
        if not leaf.is_floating:
            return recorded.clone()
        return change(self._invoker.precision.convert(recorded).clone(), recorded.dtype)

    def _differentiate(self, results: Tensors, given: Tensors, change: Change) -> Tensors:
        convert, load = self._invoker.precision.convert, self._invoker.recorded.load
        followed = {slot: leaf for slot, leaf in self._arriving.items() if results[slot].requires_grad}
        if not followed or not given:
            return {}
        arriving = [change(convert(load(leaf)), load(leaf).dtype) for leaf in followed.values()]
        roots = [results[slot] for slot in followed]
        with _arrived(roots, arriving):
            found = differentiate(roots, arriving, list(given.values()))
        return {slot: tensor for slot, tensor in zip(given, found, strict=True) if tensor is not None}

    def find_inner_share(self, slot: str) -> torch.Tensor | None:
        """What comes back to a result inside the call, because other results are made of it: `lstm_cell` makes its
        first result of its second."""
        convert, load = self._invoker.precision.convert, self._invoker.recorded.load
        followed = [one for one in self._arriving if one != slot and self.results[one].requires_grad]
        root = self.results[slot]
        if not followed or not root.requires_grad:
            return None
        seeds = [convert(load(self._arriving[one])) for one in followed]
        return differentiate([self.results[one] for one in followed], seeds, [root])[0]


class LoneFunction(LoneCall):
    """An autograd Function of the program, or a layer: the calls inside it, one after the other, on what it was given.
    Their derivative is what its own backward should give."""

    def __init__(self, invoker: Invoker, operation: Operation, arriving: Mapping[str, Leaf]) -> None:
        super().__init__(invoker, operation, arriving)
        self.meaning = ""

    def _invoke(self, given: dict[str, torch.Tensor], change: Change) -> Tensors:
        workspace = Workspace(self._invoker.recorded, lambda leaf: self._read(leaf, change))
        workspace.follows_all = True
        places: dict[int, str] = {}
        for leaf in (*self._operation.inputs, *self._operation.state_leaves):
            tensor = workspace.take(leaf, self._operation.name)
            if leaf.is_floating and leaf.requires_grad:
                first = places.setdefault(id(tensor), leaf.slot)
                if first == leaf.slot:
                    given[leaf.slot] = tensor.requires_grad_()
                    if any(call.writes_in_place for call in self._operation.children):
                        workspace.add(leaf, tensor.clone(), None)
                else:
                    self._note_twin(first, leaf.slot)
        self._call_inside(self._operation, workspace)
        results = {leaf.slot: workspace.find(leaf) for leaf in self._operation.outputs}
        if any(tensor is None for tensor in results.values()):
            raise UnknownFunctionError("it made no recorded calls that give its results")
        return {slot: tensor for slot, tensor in results.items() if tensor is not None}

    def _call_inside(self, function: Operation, workspace: Workspace) -> None:
        for call in function.children:
            if call.is_made_of_calls:
                self._call_inside(call, workspace)
                continue
            args, kwargs = self._invoker.build_arguments(call, partial(workspace.take, operation=call.name))
            with torch.enable_grad():
                found = self._invoker.invoke(call, args, kwargs)[1]
            for leaf in call.outputs:
                workspace.add(leaf, found[leaf.slot], call.name)


class LoneExchange:
    """A collective, on what all its ranks have recorded that they gave to it."""

    meaning = ""

    def __init__(
        self, calls: Sequence[tuple[Communication, RecordedTensors]], place: int, precision: Precision
    ) -> None:
        self._calls = calls
        self._place = place
        self._precision = precision
        self.results = self._exchange(keep)

    def find_sensitivities(self, slot: str) -> Iterator[float]:
        """How far a result moves when what goes in is rounded by one unit."""
        yield _distance([self._exchange(make_rounding(draw))[slot] for draw in range(_DRAWS)], self.results[slot])

    def _exchange(self, change: Change) -> Tensors:
        given = [[self._read(recorded, leaf, change) for leaf in call.reads] for call, recorded in self._calls]
        results = exchange([call for call, _ in self._calls], given)[self._place]
        leaves = self._calls[self._place][0].results
        return {leaf.slot: result for leaf, result in zip(leaves, results or (), strict=False)}

    def _read(self, recorded: RecordedTensors, leaf: Leaf, change: Change) -> torch.Tensor:
        content = recorded.load(leaf)
        wide = self._precision.convert(content)
        return change(wide, content.dtype) if leaf.is_floating else wide


class _End(torch.autograd.Function):  # type: ignore[misc]
    """A number whose gradient is that of other tensors. torch 2.13 loads its symbolic shapes to check a gradient that
    it is given, which takes as long as a small step."""

    @staticmethod
    def forward(context: Any, gradients: Sequence[torch.Tensor], *roots: torch.Tensor) -> torch.Tensor:
        context.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(context: Any, *arriving: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, *context.gradients


def differentiate(
    roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    """What comes back to the inputs for these gradients of the roots."""
    end = _End.apply(gradients, *roots)
    found: Sequence[torch.Tensor | None] = torch.autograd.grad(end, inputs, retain_graph=True, allow_unused=True)
    return found


@contextmanager
def _arrived(roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> Iterator[None]:
    """Lets each result of a call have the gradient that was recorded of it, and no more: where another result is made
    of it inside the call, what comes back from there is a part of what was recorded."""
    inner = [(root, gradient) for root, gradient in zip(roots, gradients, strict=True) if not root.is_leaf]
    hooks = [root.register_hook(partial(_replace, gradient)) for root, gradient in inner] if len(inner) > 1 else []
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _replace(recorded: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return recorded


def make_rounding(draw: int) -> Change:
    """Moves each element by up to one unit of rounding, at random and always in the same way."""
    generator = torch.Generator().manual_seed(draw)

    def change(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) * 2 - 1
        return tensor * (1 + torch.finfo(dtype).eps * noise.to(tensor.device))

    return change


def make_neighbour(draw: int) -> Change:
    """The same, to numbers that the dtype has: in every precision the same ones."""
    move = make_rounding(draw)
    return lambda tensor, dtype: move(tensor.to(widen_dtype(tensor.dtype)), dtype).to(dtype).to(tensor.dtype)


def keep(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Leaves a tensor as it is."""
    return tensor


def _distance(moved: Iterable[torch.Tensor], still: torch.Tensor) -> float:
    squares = [_mean_square(tensor.detach() - still.detach()) for tensor in moved]
    return (sum(squares) / len(squares)) ** 0.5 if squares else 0.0


def _mean_square(tensor: torch.Tensor) -> float:
    finite = tensor[torch.isfinite(tensor)]
    return float(finite.abs().square().mean()) if finite.numel() else 0.0
