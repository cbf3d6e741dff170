"""Sums, products and choices over dimensions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensorprobe.replay.meaning.mindspore.table import (
    FUNCTIONS,
    METHOD,
    MINT,
    MINT_F,
    OPS,
    PRIMITIVE,
    add,
    as_tuple,
    means,
)
from tensorprobe.replay.meaning.torch import Context


def _dims(input: Tensor, dim: Any) -> tuple[int, ...]:
    """All of them, where none is given."""
    return tuple(range(input.dim())) if dim is None or dim == () else as_tuple(dim)


@means("mean MeanExt", *FUNCTIONS)
def mean(input: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    return torch.mean(input, _dims(input, dim), keepdim, dtype=dtype)


@means("sum SumExt", *FUNCTIONS)
def total(input: Tensor, dim: Any = None, *rest: Any, keepdim: bool = False, dtype: Any = None, **_: Any) -> Tensor:
    """`(input, dim, keepdim, dtype)`; of the method also `(axis, dtype, keepdims)`."""
    for value in rest:
        if isinstance(value, bool):
            keepdim = value
        elif isinstance(value, torch.dtype):
            dtype = value
    return torch.sum(input, _dims(input, dim), keepdim, dtype=dtype)


@means("ReduceMean")
def reduce_mean(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return torch.mean(input, _dims(input, dim), keepdim)


@means("ReduceSum")
def reduce_sum(input: Tensor, dim: Any = (), keepdim: bool = False, skip_mode: bool = False) -> Tensor:
    if skip_mode and dim == ():
        return input.clone()
    return torch.sum(input, _dims(input, dim), keepdim)


@means("ReduceMax")
def reduce_max(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return torch.amax(input, _dims(input, dim), keepdim)


@means("ReduceMin")
def reduce_min(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return torch.amin(input, _dims(input, dim), keepdim)


@means("ReduceProd")
def reduce_prod(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return prod(input, dim, keepdim)


@means("ReduceAll")
def reduce_all(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return torch.all(input, _dims(input, dim), keepdim)


@means("ReduceAny")
def reduce_any(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return torch.any(input, _dims(input, dim), keepdim)


for _name, _function in (("reduce_mean", reduce_mean), ("reduce_sum", reduce_sum)):
    add(OPS, _name, _function)
for _name, _function in (("reduce_max", reduce_max), ("reduce_min", reduce_min)):
    add(OPS, _name, _function)


@means("prod", *FUNCTIONS)
def prod(input: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    result = input
    for one in sorted((place % max(input.dim(), 1) for place in _dims(input, dim)), reverse=True):
        result = torch.prod(result, one, keepdim, dtype=dtype)
    return result


@means("all", *FUNCTIONS)
def all_of(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return torch.all(input, _dims(input, dim), keepdim)


@means("any", *FUNCTIONS)
def any_of(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return torch.any(input, _dims(input, dim), keepdim)


@means("amax", *FUNCTIONS)
def amax(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return torch.amax(input, _dims(input, dim), keepdim)


@means("amin", *FUNCTIONS)
def amin(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return torch.amin(input, _dims(input, dim), keepdim)


@means("std", OPS)
def std(input: Tensor, dim: Any = None, correction: int = 0, keepdim: bool = False) -> Tensor:
    return torch.std(input, _dims(input, dim), correction=int(correction), keepdim=keepdim)


@means("var", OPS)
def var(input: Tensor, dim: Any = None, correction: int = 0, keepdim: bool = False) -> Tensor:
    return torch.var(input, _dims(input, dim), correction=int(correction), keepdim=keepdim)


@means("std", METHOD)
def std_method(input: Tensor, dim: Any = None, correction: int = 0, keepdim: bool = False) -> Tensor:
    return torch.std(input, _dims(input, dim), correction=int(correction), keepdim=keepdim)


@means("var", METHOD)
def var_method(input: Tensor, dim: Any = None, correction: int = 0, keepdim: bool = False) -> Tensor:
    return torch.var(input, _dims(input, dim), correction=int(correction), keepdim=keepdim)


@means("norm", OPS, METHOD)
def norm(input: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    if ord is None:
        return torch.linalg.vector_norm(input, 2, dim, keepdim, dtype=dtype)
    return torch.linalg.norm(input, ord, dim, keepdim, dtype=dtype)


@means("logsumexp", *FUNCTIONS)
def logsumexp(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    return torch.logsumexp(input, as_tuple(dim), keepdim)


@means("cumsum", *FUNCTIONS)
def cumsum(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    return torch.cumsum(input, dim, dtype=dtype)


@means("CumSum")
def cumsum_primitive(input: Tensor, dim: int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    turned = input.flip(dim) if reverse else input
    result = torch.cumsum(turned, dim)
    result = result - turned if exclusive else result
    return result.flip(dim) if reverse else result


@means("cumprod", *FUNCTIONS)
def cumprod(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    return torch.cumprod(input, dim, dtype=dtype)


@means("argmax", OPS, METHOD)
def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return torch.argmax(input, dim, keepdim)


@means("argmin", OPS, METHOD)
def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return torch.argmin(input, dim, keepdim)


@means("Argmax")
def argmax_primitive(input: Tensor, dim: int = -1, output_type: Any = None) -> Tensor:
    return torch.argmax(input, dim)


@means("Argmin")
def argmin_primitive(input: Tensor, dim: int = -1, output_type: Any = None) -> Tensor:
    return torch.argmin(input, dim)


# -- choices: the places that were recorded, and the values there ------------------------------------------------------


def choose(context: Context, input: Tensor, dim: int, places: Tensor, best: Any) -> Tensor:
    """The values at the places that were recorded; how far they lie from the best is told."""
    keeps = places.dim() == input.dim()
    index = (places if keeps else places.unsqueeze(dim)).long()
    values = torch.gather(input, dim, index) if input.dim() else input.clone()
    values = values if keeps or not input.dim() else values.squeeze(dim)
    if context.note_choice is not None:
        context.note_choice((best - values.detach()).abs())
    return values


def _extreme(name: str) -> Any:
    function, reduce = getattr(torch, name), getattr(torch, f"a{name}")

    def call(context: Context, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], Tensor):
            return getattr(torch, f"{name}imum")(input, args[0])
        values = dict(zip(("dim", "keepdim"), args, strict=False)) | kwargs
        dim, keepdim = values.get("dim"), bool(values.get("keepdim", False))
        best = (
            (reduce(input.detach(), _dims(input, None)), None)
            if dim is None
            else function(input.detach(), dim, keepdim)
        )
        try:
            places = context.recorded_places(1, lambda: best[1])
        except IndexError:
            return reduce(input, _dims(input, dim), keepdim)
        if dim is None:
            return reduce(input, _dims(input, None)), places
        return choose(context, input, dim, places, best[0]), places

    return call


for _name in ("max", "min"):
    for _prefix in FUNCTIONS:
        add(_prefix, _name, _extreme(_name), needs_context=True)


def _extreme_with_place(name: str) -> Any:
    def call(context: Context, input: Tensor, dim: int = 0, keepdim: bool = False) -> Any:
        best, now = getattr(torch, name)(input.detach(), dim, keepdim)
        places = context.recorded_places(0, lambda: now)
        return places, choose(context, input, dim, places, best)

    return call


add(PRIMITIVE, "ArgMaxWithValue", _extreme_with_place("max"), needs_context=True)
add(PRIMITIVE, "ArgMinWithValue", _extreme_with_place("min"), needs_context=True)


@means("topk", *FUNCTIONS, needs_context=True)
def topk(
    context: Context, input: Tensor, k: int, dim: int | None = None, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    dim = -1 if dim is None else dim
    best, now = torch.topk(input.detach(), int(k), dim, largest)
    places = context.recorded_places(1, lambda: now)
    return choose(context, input, dim, places, best), places


@means("TopK", needs_context=True)
def topk_primitive(context: Context, input: Tensor, k: int, sorted: bool = True) -> tuple[Tensor, Tensor]:
    return topk(context, input, k)


@means("sort", OPS, METHOD, needs_context=True)
def sort(context: Context, input: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    best, now = torch.sort(input.detach(), dim, descending)
    places = context.recorded_places(1, lambda: now)
    return choose(context, input, dim, places, best), places


add(PRIMITIVE, "Sort", sort, needs_context=True)


@means("argsort", OPS, METHOD)
def argsort(input: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    return torch.argsort(input, dim, descending)


# -- sums that are one -------------------------------------------------------------------------------------------------


@means("softmax", OPS, METHOD)
def softmax(input: Tensor, dim: int = -1, *, dtype: Any = None) -> Tensor:
    return torch.softmax(input, dim, dtype=dtype)


@means("softmax", MINT, MINT_F)
def softmax_mint(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    return torch.softmax(input, dim, dtype=dtype)


@means("Softmax")
def softmax_primitive(input: Tensor, dim: Any = -1) -> Tensor:
    (only,) = as_tuple(dim)
    return torch.softmax(input, only)


@means("log_softmax", OPS)
def log_softmax(input: Tensor, dim: int = -1) -> Tensor:
    return torch.log_softmax(input, dim)


@means("log_softmax", MINT_F)
def log_softmax_mint(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    return torch.log_softmax(input, dim, dtype=dtype)


@means("LogSoftmax")
def log_softmax_primitive(input: Tensor, dim: int = -1) -> Tensor:
    return torch.log_softmax(input, dim)


@means("L2Normalize")
def l2_normalize(input: Tensor, dim: Any = 0, epsilon: float = 1e-4) -> Tensor:
    """The square of the norm is at least epsilon."""
    squares = input.square().sum(as_tuple(dim), keepdim=True)
    return input / squares.clamp(min=epsilon).sqrt()


@means("normalize", MINT_F)
def normalize(input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Tensor:
    return torch.nn.functional.normalize(input, p, dim, eps)


@means("cosine_similarity", OPS)
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    return torch.cosine_similarity(x1, x2, dim, eps)
