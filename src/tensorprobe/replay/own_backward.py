"""The backward of an autograd Function is code of the program, and need not be the derivative of its forward: straight
through a rounding, a gradient with its sign reversed.

That code is not recorded, but what came and what it gave back is. Where it gave back something else than the derivative
of the calls inside the Function, a replay goes on with that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from tensorprobe.replay.program import Operation
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors
from tensorprobe.replay.result import Coverage
from tensorprobe.replay.true_step import UNITS
from tensorprobe.replay.workspace import Workspace
from tensorprobe.run.leaf import Leaf

_LEAST_ERROR = 1e-3
_ROUNDED_UNITS = 32.0
"""A backward that is the derivative is so many units of rounding off, or by no more than this in any dtype …"""
_FACTOR_UNITS = 6.0
"""… and all of it together by less."""
_EXACT = 1e-12
_FACTOR_SHARE = 1 / 16
"""A factor goes on as it is, and no sum makes more of its rounding: where gradients are held against each other with
room for many roundings, so much of one will do."""
_FACTOR_ITSELF = 1 / 32
"""It may have been computed, and rounded itself."""
_GIVEN_ERRORS = 2.0
"""What is off by more than rounding already when it comes is off by as much when it goes on, or by a little more."""


def original_of(tensor: torch.Tensor) -> torch.Tensor:
    """What a Function was given, if the calls inside it see this instead."""
    found = getattr(tensor, "_tensorprobe_original", None)
    return found if isinstance(found, torch.Tensor) else tensor


class OwnBackward:
    """Of one call of a Function."""

    def __init__(self, operation: Operation, gradients: tuple[Mapping[str, Leaf], Mapping[str, Leaf]]) -> None:
        self._operation = operation
        self._arriving, self._departing = gradients
        self._true: torch.Tensor | None = None
        """The gradient of its only result."""
        self._given: list[torch.Tensor] = []
        """What the calls inside are given in the place of its arguments."""
        self._is_differentiated = False
        """Were gradients of its gradients asked for? What it gave back is no longer the derivative of anything."""

    @contextmanager
    def around_calls(self, workspace: Workspace, recorded: RecordedTensors, coverage: Coverage) -> Iterator[None]:
        """The calls inside the Function are given tensors of their own, whose gradients are what it gives back."""
        exchanged = []
        given = [(leaf, workspace.find(leaf)) for leaf in self._operation.inputs if leaf.is_floating]
        if not all(tensor is None or _is_as_recorded(tensor, leaf, recorded) for leaf, tensor in given):
            given = []  # what it gave back says nothing of other arguments
        for leaf, tensor in given:
            if tensor is not None and tensor.requires_grad and leaf.slot in self._departing:
                inner = tensor.view_as(tensor)
                inner._tensorprobe_original = tensor
                inner.register_hook(partial(self._choose, leaf.slot, recorded, coverage))
                workspace.exchange(leaf, inner)
                exchanged.append((leaf, tensor))
                self._given.append(inner)
        yield
        for leaf in self._operation.outputs:
            workspace.find(leaf)  # one that lies in the memory of an argument is a view of what these calls were given
        for leaf, tensor in exchanged:
            workspace.exchange(leaf, tensor)

    def join(self, results: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What the calls inside have made, so that all arguments get a gradient to which it gave one: also those that
        none of these calls uses, as where rounded numbers are handed through in place of what they were made of."""
        made = {slot: result for slot, result in results.items() if result.is_floating_point()}
        reached = _nodes_behind(made.values(), {given.grad_fn for given in self._given})
        unused = [given for given in self._given if given.grad_fn not in reached]
        if not unused or not made or not torch.is_grad_enabled():
            return results
        joined = dict(zip(made, _Joined.apply(tuple(made.values()), *made.values(), *unused), strict=True))
        for slot, result in joined.items():
            result._tensorprobe_original = original_of(made[slot])
        return {**results, **joined}

    def see_results(self, results: Mapping[str, torch.Tensor]) -> None:
        """What the calls inside have made."""
        for tensor in results.values() if len(results) == 1 else ():
            if tensor.grad_fn is not None:  # a hook on the tensor itself would be taken for one of the program
                tensor.grad_fn.register_prehook(partial(self._see_arriving, tensor.output_nr))

    def _see_arriving(self, number: int, gradients: Sequence[torch.Tensor | None]) -> None:
        found = gradients[number]
        self._true = None if found is None else found.detach()

    def _choose(
        self, slot: str, recorded: RecordedTensors, coverage: Coverage, derivative: torch.Tensor
    ) -> torch.Tensor | None:
        self._is_differentiated = self._is_differentiated or torch.is_grad_enabled()
        if self._is_differentiated:
            return None
        leaf, load = self._departing[slot], partial(_load, recorded, derivative)
        unit, own = UNITS.get(leaf.dtype), load(leaf)
        if unit is None or own is None or own.shape != derivative.shape:
            return None
        if self._is_derivative(own, derivative, unit, load):
            return None
        factor = self._find_factor(own, unit, load)
        rounding = self._find_rounding(slot, own, unit, load) if factor is None else _factor_rounding(factor, own, unit)
        coverage.own_backwards.setdefault(self._operation.name, {})[slot] = rounding
        return own if factor is None or self._true is None else factor * self._true * (own != 0)

    def _is_derivative(
        self, own: torch.Tensor, derivative: torch.Tensor, unit: float, load: Callable[[Leaf], torch.Tensor | None]
    ) -> bool:
        came, true = self._load_arriving(load), self._true
        is_told = came is not None and true is not None and came.shape == true.shape == own.shape
        if is_told and unit >= UNITS["float16"]:  # where a mistake may be no larger than rounding
            assert came is not None and true is not None
            factor = float((derivative * true).sum()) / (float(true.square().sum()) or math.inf)
            if bool(((derivative - factor * true).abs() <= _EXACT * true.abs()).all()):  # it hands on what came
                return bool(((own - factor * came).abs() <= 2 * unit * (factor * came).abs()).all())
        return _is_near(own, derivative, unit, self._find_arriving_error(load))

    def _find_arriving_error(self, load: Callable[[Leaf], torch.Tensor | None]) -> float:
        """How far the gradient that came was from its truth, relative to its size: so far what it gave back may be from
        the derivative, which is that of the truth."""
        came = self._load_arriving(load)
        if came is None or self._true is None or came.shape != self._true.shape:
            return 0.0
        return float((came - self._true).norm()) / (float(self._true.norm()) or math.inf)

    def _load_arriving(self, load: Callable[[Leaf], torch.Tensor | None]) -> torch.Tensor | None:
        """The gradient of its only result."""
        return load(self._arriving["output.0"]) if list(self._arriving) == ["output.0"] else None

    def _find_rounding(
        self, slot: str, own: torch.Tensor, unit: float, load: Callable[[Leaf], torch.Tensor | None]
    ) -> float:
        """What is a sum of many numbers (the gradient of one step of quantization) may be smaller than their rounding.
        They are taken for products of what came and of the other arguments."""
        size = float(own.norm())
        came = [gradient for gradient in map(load, self._arriving.values()) if gradient is not None]
        if sum(gradient.numel() for gradient in came) > own.numel():
            others = map(load, (leaf for leaf in self._operation.inputs if leaf.is_floating and leaf.slot != slot))
            factors = [
                float(other.norm()) / other.numel() ** 0.5 for other in others if other is not None and other.numel()
            ]
            size = max(size, max(factors, default=1.0) * max(float(gradient.norm()) for gradient in came))
        return unit * size

    def _find_factor(self, own: torch.Tensor, unit: float, load: Callable[[Leaf], torch.Tensor | None]) -> float | None:
        """What the gradient that came is multiplied by, where it is passed on; None if it is not one number: 1 where it
        goes straight through, -1 where it is reversed."""
        came = self._load_arriving(load)
        if came is None or self._true is None or came.shape != own.shape or self._true.shape != own.shape:
            return None
        is_passed = own != 0
        nearest = float((own * came).sum() / (came * came * is_passed).sum())
        for factor in (1.0, nearest):
            if bool(((own - factor * came).abs() <= 2 * unit * (factor * came).abs())[is_passed].all()):
                return factor
        return None


def _factor_rounding(factor: float, own: torch.Tensor, unit: float) -> float:
    """The numbers that it was found from are rounded, each on its own: together they tell it better than one does."""
    count = float((own**2).sum()) ** 2 / (float((own**4).sum()) or 1.0)  # small ones among large ones tell nothing
    if factor == 1 or unit < UNITS["float16"]:
        return 0.0 if factor == 1 else unit * float(own.norm())
    return unit * float(own.norm()) * max(_FACTOR_SHARE / math.sqrt(max(count, 1.0)), _FACTOR_ITSELF)


class _Joined(torch.autograd.Function):  # type: ignore[misc]
    """Hands on results and their gradients; what else it is given gets a gradient of zero."""

    @staticmethod
    def forward(ctx: Any, results: Sequence[torch.Tensor], *given: torch.Tensor) -> Any:
        ctx.unused = given[len(results) :]
        return tuple(result.detach() for result in results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return (None, *gradients, *map(torch.zeros_like, ctx.unused))


def _nodes_behind(results: Iterable[torch.Tensor], last: Set[Any]) -> set[Any]:
    """All that their gradients go through, up to these."""
    waiting: list[Any] = [result.grad_fn for result in results]
    found: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += (following for following, _ in node.next_functions if node not in last)
    return found


def _load(recorded: RecordedTensors, like: torch.Tensor, leaf: Leaf) -> torch.Tensor | None:
    try:
        return recorded.load(leaf).to(like)
    except MissingContentError:
        return None


def _is_as_recorded(tensor: torch.Tensor, leaf: Leaf, recorded: RecordedTensors) -> bool:
    content, unit = _load(recorded, tensor.detach(), leaf), UNITS.get(leaf.dtype)
    return content is None or unit is None or _is_near(content, tensor.detach(), unit)


def _is_near(own: torch.Tensor, derivative: torch.Tensor, unit: float, given: float = 0.0) -> bool:
    """Element by element, and all together: rounding makes no number of them larger than the others. `given`: how far
    off what it was made of is."""
    largest = max(float(own.norm()), float(derivative.norm()))
    off, least = own - derivative, max(_LEAST_ERROR, _GIVEN_ERRORS * given)
    is_same_size = float((off * derivative).sum().abs()) <= max(least, _FACTOR_UNITS * unit) * largest**2
    return is_same_size and float(off.norm()) <= max(least, _ROUNDED_UNITS * unit) * largest
