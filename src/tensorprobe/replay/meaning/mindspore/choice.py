"""Extremes, medians, counts, and what else looks for elements."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensorprobe.replay.meaning.mindspore.reduction import choose, topk
from tensorprobe.replay.meaning.mindspore.table import FUNCTIONS, METHOD, MINT, OPS, add, as_tuple, means
from tensorprobe.replay.meaning.torch import Context


def _dims(input: Tensor, dim: Any) -> tuple[int, ...]:
    return tuple(range(input.dim())) if dim is None or dim == () else as_tuple(dim)


def _extremes_so_far(name: str) -> Any:
    def call(context: Context, input: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        best, now = getattr(torch, name)(input.detach(), dim)
        places = context.recorded_places(1, lambda: now)
        return choose(context, input, dim, places, best), places

    return call


for _prefix in FUNCTIONS:
    add(_prefix, "cummax", _extremes_so_far("cummax"), needs_context=True)
for _prefix in (OPS, METHOD):
    add(_prefix, "cummin", _extremes_so_far("cummin"), needs_context=True)


@means("median", OPS, METHOD, needs_context=True)
def median(context: Context, input: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    best, now = torch.median(input.detach(), dim, keepdim)
    places = context.recorded_places(1, lambda: now)
    return choose(context, input, dim, places, best), places


@means("top_k", OPS, METHOD, needs_context=True)
def top_k(context: Context, input: Tensor, k: int, sorted: bool = True) -> tuple[Tensor, Tensor]:
    return topk(context, input, k)


@means("aminmax", OPS, METHOD)
def aminmax(input: Tensor, *, dim: int | None = 0, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    dims = _dims(input, dim)
    return torch.amin(input, dims, keepdim), torch.amax(input, dims, keepdim)


@means("ptp", METHOD)
def peak_to_peak(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    dims = _dims(input, dim)
    return torch.amax(input, dims, keepdim) - torch.amin(input, dims, keepdim)


@means("std_mean", OPS)
def std_mean(input: Tensor, dim: Any = None, correction: int = 0, keepdim: bool = False) -> Any:
    return torch.std_mean(input, _dims(input, dim), correction=int(correction), keepdim=keepdim)


@means("var_mean", OPS)
def var_mean(input: Tensor, dim: Any = None, correction: int = 0, keepdim: bool = False) -> Any:
    return torch.var_mean(input, _dims(input, dim), correction=int(correction), keepdim=keepdim)


@means("count_nonzero", OPS, METHOD)
def count_nonzero(input: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    count = (input != 0).sum(_dims(input, dim), keepdim)
    return count if dtype is None else count.to(dtype)


@means("bincount", OPS, METHOD)
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    return torch.bincount(input.long(), weights, minlength).to(torch.get_default_dtype())


@means("unique Unique", OPS, needs_context=True)
def unique(context: Context, input: Tensor) -> tuple[Tensor, Tensor]:
    """Each value once, in the order that was recorded, and where each element is found among them."""
    flat = input.reshape(-1)
    places = context.recorded_places(1, lambda: torch.unique(flat, return_inverse=True)[1].reshape(input.shape))
    found = places.reshape(-1).long()
    first = torch.stack([(found == number).nonzero()[0, 0] for number in range(int(found.max()) + 1)])
    return flat[first], places


@means("searchsorted", OPS, MINT)
def searchsorted(
    sorted_sequence: Tensor,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    return torch.searchsorted(sorted_sequence, values, out_int32=out_int32, right=right, side=side, sorter=sorter)


@means("searchsorted", METHOD)
def searchsorted_method(input: Tensor, v: Any, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    values = torch.as_tensor(v, dtype=input.dtype, device=input.device)
    return torch.searchsorted(input, values, side=side, sorter=None if sorter is None else sorter.long())


@means("take", METHOD)
def take(input: Tensor, index: Any, dim: int | None = None, mode: str = "clip") -> Tensor:
    """Whole parts along an axis; of all elements, where none is given."""
    flat, place = (input.reshape(-1), 0) if dim is None else (input, dim % input.dim())
    index, length = torch.as_tensor(index).long(), flat.shape[place]
    if mode == "clip":
        index = torch.where(index < 0, index + length, index).clamp(0, length - 1)
    parts = flat.index_select(place, index.reshape(-1) % length)
    return parts.reshape(*flat.shape[:place], *index.shape, *flat.shape[place + 1 :])


@means("CumProd")
def cumprod_primitive(input: Tensor, dim: int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    turned = input.flip(dim) if reverse else input
    if exclusive:
        first = torch.ones_like(turned.narrow(dim, 0, 1))
        turned = torch.cat([first, turned.narrow(dim, 0, turned.shape[dim] - 1)], dim)
    result = torch.cumprod(turned, dim)
    return result.flip(dim) if reverse else result
