"""What layers written by hand communicate: autograd Functions in the manner of Megatron."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

Group = Any


@contextmanager
def faulty_gelu(is_faulty: bool) -> Iterator[None]:
    """torch's own kernel of gelu is replaced by one that is wrong where its argument is large."""
    if not is_faulty:
        yield
        return
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a kernel is replaced
        library.impl("gelu", lambda x, *, approximate="none": _half_normal(x) * (1 + 0.01 * (x > 0.5)), "CPU")
    try:
        yield
    finally:
        library._destroy()


def _half_normal(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1 + torch.erf(x * 0.5**0.5))


class Copy(torch.autograd.Function):
    """Into a tensor-parallel region."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Reduce(torch.autograd.Function):
    """Out of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


class Gather(torch.autograd.Function):
    """The parts of all along the first dimension; the gradient of each goes back to its rank."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group, size = group, dist.get_world_size(group)
        whole = x.new_empty((x.shape[0] * size, *x.shape[1:]))
        dist.all_gather_into_tensor(whole, x.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        size = dist.get_world_size(ctx.group)
        own = gradient.new_empty((gradient.shape[0] // size, *gradient.shape[1:]))
        dist.reduce_scatter_tensor(own, gradient.contiguous(), group=ctx.group)
        return own, None


class ReduceScatter(torch.autograd.Function):
    """The sum over all ranks, each with its part along the first dimension."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group, size = group, dist.get_world_size(group)
        own = x.new_empty((x.shape[0] // size, *x.shape[1:]))
        dist.reduce_scatter_tensor(own, x.contiguous(), group=group)
        return own

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        size = dist.get_world_size(ctx.group)
        whole = gradient.new_empty((gradient.shape[0] * size, *gradient.shape[1:]))
        dist.all_gather_into_tensor(whole, gradient.contiguous(), group=ctx.group)
        return whole, None


class Exchange(torch.autograd.Function):
    """Rows to the ranks of their experts, and back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, given: list[int], taken: list[int]) -> torch.Tensor:
        ctx.splits = given, taken
        result = x.new_empty((sum(taken), *x.shape[1:]))
        dist.all_to_all_single(result, x.contiguous(), taken, given)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        given, taken = ctx.splits
        result = gradient.new_empty((sum(given), *gradient.shape[1:]))
        dist.all_to_all_single(result, gradient.contiguous(), given, taken)
        return result, None, None


class VocabularyLoss(torch.autograd.Function):
    """The cross entropy of logits that are cut along the vocabulary."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor, first: int, group: Group) -> torch.Tensor:
        largest = logits.max(-1).values
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        logits = logits - largest.unsqueeze(-1)
        outside = (target < first) | (target >= first + logits.shape[-1])
        place = torch.where(outside, 0, target - first)
        predicted = logits.gather(-1, place.unsqueeze(-1)).squeeze(-1).masked_fill(outside, 0.0)
        dist.all_reduce(predicted, group=group)
        weights = logits.exp()
        total = weights.sum(-1)
        dist.all_reduce(total, group=group)
        ctx.save_for_backward(weights / total.unsqueeze(-1), outside, place)
        return total.log() - predicted

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        shares, outside, place = ctx.saved_tensors
        result = shares.clone()
        hit = torch.zeros_like(result).scatter_(-1, place.unsqueeze(-1), (~outside).to(result.dtype).unsqueeze(-1))
        return (result - hit) * gradient.unsqueeze(-1), None, None, None
