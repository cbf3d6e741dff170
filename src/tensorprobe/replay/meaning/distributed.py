"""Operators of torch's FSDP2, which put parameters into the buffer that is gathered and take them out of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def copy_in(
    context: Any,
    parameters: Sequence[torch.Tensor],
    gathered: torch.Tensor,
    sizes: Sequence[int],
    size: int,
    rank: int,
    *_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`fsdp::all_gather_copy_in`: this rank's parameters into its place in the buffer."""
    own = gathered.narrow(0, size * rank, size)
    for place, parameter in zip(torch.split(own, list(sizes)), parameters, strict=True):
        place.data.copy_(parameter.detach().reshape(-1))  # without a new version, as FSDP does it
    return own, gathered


def split_copy(
    context: Any, gathered: torch.Tensor, sizes: Sequence[int], dim: int = 0, *, out: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """`fsdp::split_with_sizes_copy`: the parameters of all ranks out of the buffer."""
    for place, piece in zip(out, torch.split(gathered, list(sizes), dim), strict=True):
        place.data.copy_(piece.detach())
    return tuple(out)


MEANINGS: dict[str, Callable[..., Any]] = {"fsdp.all_gather_copy_in": copy_in, "fsdp.split_with_sizes_copy": split_copy}


def copies_only(prefix: str, op: str) -> bool:
    """Does it only write into memory that it is given?"""
    return prefix == "Ops" and op.removesuffix(".default") in MEANINGS
