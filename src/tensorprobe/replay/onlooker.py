"""Who looks on while a step is replayed."""

from __future__ import annotations

import torch

from tensorprobe.replay.invocation import Tensors
from tensorprobe.replay.program import Operation
from tensorprobe.replay.root import Roots
from tensorprobe.run.backward_pass import LeafGradient


class Onlooker:
    """Is told what a replay computes. Tensors that it wants to keep it must copy: calls write in place."""

    roots: Roots = Roots()
    """The results from which gradients will be asked for."""

    def see_arguments(self, operation: Operation, tensors: Tensors) -> None:
        """A call is about to be given these."""

    def see_contribution(self, operation: Operation, tensors: Tensors) -> None:
        """This is what the rank brings to a collective."""

    def see_spread(self, operation: Operation, given: Tensors, results: Tensors) -> None:
        """A call with distributed tensors was made for all ranks: the whole tensors that it took and returned."""

    def see_pinned(self, operation: Operation, tensors: Tensors) -> None:
        """A call could not be made again: these are its recorded results."""

    def see_results(self, operation: Operation, tensors: Tensors) -> None:
        """A call has returned these."""

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        """A gradient has come, of the name that it was recorded by."""

    def see_state_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        """What a layer gives back to one of its parameters, which no record has."""

    def see_leaf_gradient(self, record: str, leaf: LeafGradient, gradient: torch.Tensor) -> None:
        """A backward pass is over, and this is what it leaves in `.grad`."""

    def see_unused_leaf(self, leaf: LeafGradient, recorded: torch.Tensor | None) -> None:
        """A backward pass is over, and gave a gradient to a leaf that no call has taken here: it is as recorded; None
        where that is not known."""

    def see_gathered_gradient(self, parameter: str, gradient: torch.Tensor) -> None:
        """The average over ranks of the gradient of a parameter that is in parts, as a whole, which no record has."""


class Onlookers(Onlooker):
    """Several that look on together."""

    def __init__(self, *onlookers: Onlooker) -> None:
        self._onlookers = onlookers

    def see_arguments(self, operation: Operation, tensors: Tensors) -> None:
        for onlooker in self._onlookers:
            onlooker.see_arguments(operation, tensors)

    def see_contribution(self, operation: Operation, tensors: Tensors) -> None:
        for onlooker in self._onlookers:
            onlooker.see_contribution(operation, tensors)

    def see_spread(self, operation: Operation, given: Tensors, results: Tensors) -> None:
        for onlooker in self._onlookers:
            onlooker.see_spread(operation, given, results)

    def see_pinned(self, operation: Operation, tensors: Tensors) -> None:
        for onlooker in self._onlookers:
            onlooker.see_pinned(operation, tensors)

    def see_results(self, operation: Operation, tensors: Tensors) -> None:
        for onlooker in self._onlookers:
            onlooker.see_results(operation, tensors)

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        for onlooker in self._onlookers:
            onlooker.see_gradient(record, slot, gradient)

    def see_state_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        for onlooker in self._onlookers:
            onlooker.see_state_gradient(record, slot, gradient)

    def see_leaf_gradient(self, record: str, leaf: LeafGradient, gradient: torch.Tensor) -> None:
        for onlooker in self._onlookers:
            onlooker.see_leaf_gradient(record, leaf, gradient)

    def see_unused_leaf(self, leaf: LeafGradient, recorded: torch.Tensor | None) -> None:
        for onlooker in self._onlookers:
            onlooker.see_unused_leaf(leaf, recorded)

    def see_gathered_gradient(self, parameter: str, gradient: torch.Tensor) -> None:
        for onlooker in self._onlookers:
            onlooker.see_gathered_gradient(parameter, gradient)
