"""One recorded call alone: replayed in float64 on its own recorded inputs, with the gradient that it was given.

What it then differs by is its own error, whatever came before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tensorprobe.replay.argument import Leaf, iter_leaves
from tensorprobe.replay.invocation import Invoker, Tensors, tensors_by_slot
from tensorprobe.replay.program import Operation

_ROUNDINGS = 4
"""So many draws of rounded inputs tell what rounding does."""


@dataclass
class Alone:
    """The results of a call on its recorded inputs, and its derivative there."""

    results: Tensors
    inputs: Tensors
    """The tensors that it was given, where gradients can be asked for."""
    sensitivity: Mapping[str, float]
    """For each result how far its elements move, by the square root of their mean square, when every input is rounded
    by one unit of its dtype."""


class LoneCall:
    """Replays single calls."""

    def __init__(self, invoker: Invoker) -> None:
        self._invoker = invoker

    def run(self, operation: Operation) -> Alone:
        """MissingContentError, or whatever torch says, where it cannot be."""
        given: dict[str, torch.Tensor] = {}
        results = self._invoke(operation, given, None)
        moved = {slot: 0.0 for slot in results}
        for draw in range(_ROUNDINGS if self._rounds(operation) else 0):
            generator = torch.Generator().manual_seed(draw)
            with torch.no_grad():
                rounded = self._invoke(operation, {}, generator)
            for slot, result in results.items():
                if result.is_floating_point() and rounded[slot].shape == result.shape:
                    moved[slot] += float(_mean_square(rounded[slot] - result.detach()))
        sensitivity = {slot: (square / _ROUNDINGS) ** 0.5 for slot, square in moved.items()}
        return Alone(results, given, sensitivity)

    def _rounds(self, operation: Operation) -> bool:
        return any(leaf.is_floating for leaf in operation.inputs)

    def _invoke(
        self, operation: Operation, given: dict[str, torch.Tensor], generator: torch.Generator | None
    ) -> Tensors:
        invoker = self._invoker

        def make(leaf: Leaf) -> torch.Tensor:
            recorded = invoker.recorded.load(leaf)
            tensor = invoker.precision.convert(recorded)
            if tensor is recorded:
                tensor = tensor.clone()
            if generator is not None and tensor.is_floating_point():
                noise = torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype) * 2 - 1
                tensor = tensor * (1 + noise.to(tensor.device) * torch.finfo(recorded.dtype).eps)
            elif leaf.is_floating and leaf.requires_grad:
                tensor.requires_grad_()
                given[leaf.slot] = tensor
                tensor = tensor.clone() if operation.writes_in_place else tensor
            return tensor

        args, kwargs = invoker.build_arguments(operation, make)
        _, found = invoker.invoke(operation, args, kwargs)
        return found


def backward_leaves(fields: Mapping[str, Any]) -> tuple[dict[str, Leaf], dict[str, Leaf]]:
    """Of a backward record: the gradients of the results, by their places in the forward record, and those of the
    arguments."""
    arriving = {leaf.slot.replace("input", "output", 1): leaf for leaf in iter_leaves(fields.get("input"), "input")}
    departing = {leaf.slot.replace("output", "input", 1): leaf for leaf in iter_leaves(fields.get("output"), "output")}
    departing.update((leaf.slot, leaf) for leaf in iter_leaves(fields.get("output_kwargs"), "kwargs"))
    return arriving, departing


def _mean_square(tensor: torch.Tensor) -> torch.Tensor:
    finite = tensor[torch.isfinite(tensor)]
    return finite.abs().square().mean() if finite.numel() else torch.zeros(())


__all__ = ["Alone", "LoneCall", "backward_leaves", "tensors_by_slot"]
