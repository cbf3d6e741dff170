"""Distributed tensors (DTensor) in a replay: the whole tensor, once for all ranks of its mesh.

A call with distributed tensors means what it means for the whole ones, however they lie on their ranks. So it is made
once, with the whole tensors, and each rank looks at its part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tensorprobe.model.record import Sharding
from tensorprobe.replay.invocation import NotReplayedError
from tensorprobe.run.leaf import Leaf

_SHARD = re.compile(r"(?:Shard\(dim=|S\()(-?\d+)\)")
_PARTIAL = re.compile(r"Partial\((\w+)\)|P(?:\((\w+)\))?")
_REPLICATED = ("Replicate()", "R")


class Common(torch.autograd.Function):  # type: ignore[misc]
    """A tensor that all ranks have alike: one stands for all, and all get its gradient."""

    @staticmethod
    def forward(ctx: Any, *parts: torch.Tensor) -> torch.Tensor:
        ctx.count = len(parts)
        return parts[0].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients * ctx.count


class Share(torch.autograd.Function):  # type: ignore[misc]
    """One of `count` looks at the same tensor, each of which gives back the same gradient: it counts once."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, count: int) -> torch.Tensor:
        ctx.count = count
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] / ctx.count, None


class SpreadTensors:
    """The whole tensors of one rank, by what the record says of their parts."""

    def __init__(self) -> None:
        self._by_tensor: dict[int, torch.Tensor] = {}
        self._by_place: dict[Any, torch.Tensor] = {}
        self._by_memory: dict[Any, tuple[Leaf, torch.Tensor]] = {}

    def find(self, leaf: Leaf) -> torch.Tensor | None:
        if leaf.tensor is not None and leaf.tensor in self._by_tensor:
            return self._by_tensor[leaf.tensor]
        return self._by_place.get(_place(leaf))

    def add(self, leaf: Leaf, whole: torch.Tensor) -> None:
        if leaf.tensor is not None:
            self._by_tensor[leaf.tensor] = whole
        if leaf.storage is not None:
            self._by_place[_place(leaf)] = whole
            self._by_memory[leaf.storage, leaf.offset, leaf.stored_shape] = (leaf, whole)

    def find_around(self, part: Leaf) -> tuple[Leaf, torch.Tensor] | None:
        """The distributed tensor that a plain one is the part of."""
        return self._by_memory.get((part.storage, part.offset, part.shape)) if part.storage is not None else None

    def forget(self, tensors: Sequence[int], storages: Sequence[int]) -> None:
        """Nobody looks at these any more."""
        for number in tensors:
            self._by_tensor.pop(number, None)
        gone = set(storages)
        for place in [place for place in self._by_place if place[0] in gone]:
            del self._by_place[place]
        for memory in [memory for memory in self._by_memory if memory[0] in gone]:
            del self._by_memory[memory]


def _place(leaf: Leaf) -> Any:
    return (leaf.storage, leaf.shape, leaf.sharding.placements if leaf.sharding is not None else None)


def part_leaf(leaf: Leaf) -> Leaf:
    """The part of a distributed tensor as a tensor of its own."""
    assert leaf.sharding is not None
    return replace(leaf, shape=leaf.sharding.local_shape, sharding=None, tensor=None, parameter=None)


def is_spread(leaves: Sequence[Leaf]) -> bool:
    """Is one of them a distributed tensor whose ranks are known?"""
    return any(leaf.sharding is not None and leaf.sharding.mesh_ranks for leaf in leaves)


def combine(parts: Sequence[torch.Tensor], sharding: Sharding) -> torch.Tensor:
    """The whole tensor of its parts, which are in the order of the ranks on the mesh."""
    together = list(parts)
    for size, placement in reversed(list(zip(sharding.mesh_shape, sharding.placements, strict=True))):
        together = [_join(together[start : start + size], placement) for start in range(0, len(together), size)]
    (whole,) = together
    return whole


def _join(parts: Sequence[torch.Tensor], placement: str) -> torch.Tensor:
    if placement in _REPLICATED:
        common: torch.Tensor = Common.apply(*parts)
        return common
    dim = shard_dim(placement)
    if dim is not None:
        return torch.cat([part for part in parts if part.numel()] or [parts[0]], dim)
    partial = _PARTIAL.fullmatch(placement)
    op = (partial.group(1) or partial.group(2) or "sum") if partial else ""
    if op in ("sum", "avg"):
        stacked = torch.stack(list(parts))
        return stacked.sum(0) if op == "sum" else stacked.mean(0)
    raise NotReplayedError(f"a tensor that lies on its ranks as {placement[:40]}")


def cut(whole: torch.Tensor, sharding: Sharding, rank: int, *, is_shared: bool = False) -> torch.Tensor | None:
    """The part of a rank; None where a rank has only a summand. `is_shared`: its gradient is also given back by the
    ranks that have the same part."""
    if rank not in sharding.mesh_ranks:
        return None
    place, part, copies = sharding.mesh_ranks.index(rank), whole, 1
    for number, placement in enumerate(sharding.placements):
        size = sharding.mesh_shape[number]
        coordinate = place // math.prod(sharding.mesh_shape[number + 1 :]) % size
        dim = shard_dim(placement)
        if dim is not None:
            if not -part.dim() <= dim < part.dim():
                return None
            pieces = part.chunk(size, dim)
            part = pieces[coordinate] if coordinate < len(pieces) else part.narrow(dim, 0, 0)
        elif placement in _REPLICATED:
            copies *= size
        else:
            return None
    if is_shared and copies > 1:
        part = Share.apply(part, copies)
    return part


def shard_dim(placement: str) -> int | None:
    """
    >>> shard_dim("Shard(dim=1)"), shard_dim("Replicate()")
    (1, None)
    """
    found = _SHARD.fullmatch(placement)
    return int(found.group(1)) if found is not None else None
