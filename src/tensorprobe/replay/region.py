"""Checkpointing of the older kind repeats a region of calls in a backward pass of its own, which adds to the `.grad` of
leaves by itself. A replay has no such pass: there the region gets leaves of its own, which hand on what they get."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from tensorprobe.capture.torch.node import is_leaf
from tensorprobe.replay.invocation import is_followed_anyway
from tensorprobe.replay.program import Operation


class Regions:
    """The region that calls are in: those that follow one another."""

    def __init__(self, tell: Callable[[torch.Tensor], None]) -> None:
        self._tell = tell
        """Told of a leaf that has got a gradient."""
        self._own: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a call in a region is given for this tensor: another one in the same memory, if it is a leaf."""
        if not is_leaf(tensor) or not tensor.requires_grad:
            return tensor
        if id(tensor) not in self._own:
            own = tensor.detach().requires_grad_()
            own.register_post_accumulate_grad_hook(partial(self._hand_on, tensor))
            self._own[id(tensor)] = tensor, own
        return self._own[id(tensor)][1]

    def leave(self) -> None:
        """A call outside of any region."""
        self._own.clear()

    def _hand_on(self, tensor: torch.Tensor, own: torch.Tensor) -> None:
        with torch.no_grad():
            if tensor.grad is None:
                tensor.grad = own.grad
            elif own.grad is not None:
                tensor.grad.add_(own.grad)
            own.grad = None
        self._tell(tensor)


def is_repeated(operation: Operation) -> bool:
    """Is it in a region that checkpointing of the older kind repeats?"""
    return operation.inside is None and is_followed_anyway(operation)
