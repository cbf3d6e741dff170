"""Which tensor is it? A number that two looks at one tensor share, and two different tensors do not.

Tensors that share memory and layout may yet be two places in the graph of gradients, `x` and `x.view_as(x)`: there the
node that made them tells them apart. A tensor that is written to in place gets another node, as do all that share its
memory: it is then known by its address. Objects cannot be held for that, not even weakly: torch refuses to exchange a
tensor that somebody refers to. So an address counts only where the memory was written to since it was last seen there;
should another tensor have come to lie at it, the one before is gone, and nobody asks for it.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import torch

from tensorprobe.capture.torch.layout import Layout
from tensorprobe.capture.torch.node import find_node

NODE_KEY = "tensorprobe number"
"""The key in a node's metadata under which its number stands."""

_MAX_CHAIN = 4

Place = tuple[Any, ...]
"""How a tensor lies in its storage, and where it is in the graph."""


class KnownTensors:
    """The tensors of one storage that were seen."""

    __slots__ = ("by_address", "by_place")

    def __init__(self) -> None:
        self.by_place: dict[Place, int] = {}
        self.by_address: dict[int, tuple[Layout, Place]] = {}
        """How each lay there when it was last seen, and its place then."""


class TensorNumbers:
    """The numbers that were given in a session."""

    def __init__(self) -> None:
        self.numbers = count()
        self.nodes = count()

    def number(self, tensor: torch.Tensor, known: KnownTensors, layout: Layout, node: Any, requires_grad: bool) -> int:
        """`known` are the tensors of its storage; `layout` how it lies there; `node` made it."""
        # without a node: a parameter, and what `.data` and `detach()` make of it
        key = (requires_grad,) if node is None else (self._node_number(node), tensor.output_nr)
        place = (layout.place, *key)
        found = known.by_place.get(place)
        if found is None:
            found = known.by_place[place] = self._move(tensor, known, layout)
        known.by_address[tensor._cdata] = layout, place
        return found

    def has(self, tensor: torch.Tensor, known: KnownTensors, layout: Layout) -> bool:
        """Has it a number already?"""
        node = find_node(tensor)
        key = (tensor.requires_grad,) if node is None else (self._node_number(node), tensor.output_nr)
        return (layout.place, *key) in known.by_place

    def _move(self, tensor: torch.Tensor, known: KnownTensors, layout: Layout) -> int:
        """The number that a tensor had before it was written to, which nobody else has from now on; or a new one."""
        seen, place = known.by_address.get(tensor._cdata, (layout, ()))
        is_same = seen.place is layout.place and seen[0] < layout[0]
        number = known.by_place.pop(place, None) if is_same else None
        return number if number is not None else next(self.numbers)

    def find_base(self, view: torch.Tensor, known: KnownTensors) -> int | None:
        """The tensor that a view was taken of, without a call that was seen (`x.T`): by the graph of gradients."""
        node = find_node(view)
        for _ in range(_MAX_CHAIN):
            if node is None or len(node.next_functions) != 1:
                return None
            node, number = node.next_functions[0]
            leaf = getattr(node, "variable", None)
            if leaf is not None:
                return next((found for place, found in known.by_place.items() if place[1:] == (True,)), None)
            own = node.metadata.get(NODE_KEY) if node is not None else None
            if own is not None:
                return next((found for place, found in known.by_place.items() if place[1:] == (own, number)), None)
        return None

    def _node_number(self, node: Any) -> int:
        metadata = node.metadata
        found: int | None = metadata.get(NODE_KEY)
        if found is None:
            found = metadata[NODE_KEY] = next(self.nodes)
        return found
