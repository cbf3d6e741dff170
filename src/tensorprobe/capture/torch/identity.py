"""Which tensor is it? A number that two looks at one tensor share, and two different tensors do not.

Tensors that share memory and layout may yet be two places in the graph of gradients, `x` and `x.view_as(x)`: there the
node that made them tells them apart. Objects cannot be held for that, not even weakly: torch refuses to exchange a
tensor that somebody refers to.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import torch

_NUMBER = "tensorprobe number"
"""The key in a node's metadata under which its number stands."""

Place = tuple[Any, ...]


class TensorNumbers:
    """The numbers that were given in a session."""

    def __init__(self) -> None:
        self._numbers = count()
        self._nodes = count()

    def number(self, tensor: torch.Tensor, known: dict[Place, int], layout: tuple[Any, ...]) -> int:
        """`known` are the numbers of the tensors of its storage; `layout` how it lies there, its version first."""
        node = tensor.grad_fn
        if node is None:  # a parameter, and what `.data` and `detach()` make of it
            place: Place = (layout[1:], tensor.requires_grad)
        else:
            place = (layout[1:], self._node_number(node), tensor.output_nr)
        found = known.get(place)
        if found is None:
            found = known[place] = next(self._numbers)
        return found

    def _node_number(self, node: Any) -> int:
        metadata = node.metadata
        found: int | None = metadata.get(_NUMBER)
        if found is None:
            found = metadata[_NUMBER] = next(self._nodes)
        return found
