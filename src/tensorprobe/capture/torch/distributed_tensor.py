"""Tensors that are spread over ranks, or whose content is still on its way. Looks at their attributes only.

Any operation on a DTensor may communicate, and one rank that does so alone waits for ever. An operation on the result
of an asynchronous collective waits for it, perhaps before the program has done what the other ranks wait for.
"""

from __future__ import annotations

from typing import Any

import torch

from tensorprobe.model.record import Sharding

NOT_WAITED = "result of an asynchronous collective, not waited for yet"


def is_spread(tensor: torch.Tensor) -> bool:
    """Is it a DTensor? By its attributes, so that nothing need be imported to know it."""
    return type(tensor).__name__ == "DTensor" and hasattr(tensor, "_local_tensor")


def is_in_flight(tensor: torch.Tensor) -> bool:
    """Is it the result of a functional collective that nobody has waited for?"""
    return type(tensor).__name__ == "AsyncCollectiveTensor" and not tensor.completed


def content_in_flight(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor that the result will be in; other tensors are that themselves."""
    content: torch.Tensor = getattr(tensor, "elem", tensor)
    return content


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor of this rank; it may be in flight."""
    if is_spread(tensor):
        tensor = tensor._local_tensor
    if type(tensor).__name__ == "AsyncCollectiveTensor" and tensor.completed:
        tensor = tensor.elem
    return tensor


def describe_sharding(tensor: torch.Tensor) -> Sharding | None:
    """How a DTensor lies on its mesh; None for other tensors."""
    if not is_spread(tensor):
        return None
    spec: Any = tensor._spec
    names = spec.mesh.mesh_dim_names
    return Sharding(
        placements=tuple(repr(placement) for placement in spec.placements),
        mesh_shape=tuple(int(size) for size in spec.mesh.shape),
        mesh_names=tuple(names) if names is not None else None,
        mesh_ranks=tuple(_ranks_of(spec.mesh)),
        local_shape=tuple(tensor._local_tensor.shape),
    )


def add_locally(first: Any, second: Any) -> torch.Tensor:
    """The sum of two DTensors that lie alike, without a collective."""
    if not is_spread(first) or not is_spread(second) or first._spec.placements != second._spec.placements:
        raise ValueError("two shares of a gradient lie differently on their mesh; adding them would communicate")
    total = local_part(first.detach()).detach() + local_part(second.detach()).detach()
    kind = type(first)
    spread: torch.Tensor = kind.from_local(
        total, first._spec.mesh, first._spec.placements, run_check=False, shape=first.shape, stride=first.stride()
    )
    return spread


def _ranks_of(mesh: Any) -> list[int]:
    """Its ranks in the order of its places; they lie in a small tensor of the host."""
    found: list[int] = mesh.mesh.flatten().tolist()
    return found
