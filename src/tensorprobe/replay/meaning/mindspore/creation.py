"""What makes tensors anew, or gives them another dtype or another place in the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tensorprobe.replay.meaning.mindspore.table import (
    METHOD,
    MINT,
    OPS,
    add,
    as_tuple,
    means,
    spread,
)
from tensorprobe.replay.meaning.torch import Context
from tensorprobe.replay.precision import torch_dtype

Sizes = Sequence[int]


@means("zeros Zeros", OPS, MINT)
def zeros(*size: Any, dtype: Any = None) -> Tensor:
    return torch.zeros(_shape_of(size), dtype=_dtype_among(size) or dtype)


@means("ones Ones", OPS, MINT)
def ones(*size: Any, dtype: Any = None) -> Tensor:
    return torch.ones(_shape_of(size), dtype=_dtype_among(size) or dtype)


@means("full", OPS, MINT, needs_context=True)
def full(context: Context, size: Sizes, fill_value: Any, *, dtype: Any = None) -> Tensor:
    """Without a dtype, what comes out is a matter of MindSpore's version: of 1.5 it may be 1."""
    dtype = context.precision.dtype(context.recorded_results(0).dtype) if dtype is None else dtype
    return torch.full(tuple(as_tuple(size)), fill_value, dtype=dtype)


@means("zeros_like ZerosLike", OPS, MINT)
def zeros_like(input: Tensor, *_: Any, dtype: Any = None) -> Tensor:
    return torch.zeros_like(input, dtype=_dtype_among(_) or dtype)


@means("ones_like OnesLike", OPS, MINT)
def ones_like(input: Tensor, *_: Any, dtype: Any = None) -> Tensor:
    return torch.ones_like(input, dtype=_dtype_among(_) or dtype)


@means("full_like", OPS, MINT)
def full_like(input: Tensor, fill_value: Any, *, dtype: Any = None) -> Tensor:
    return torch.full_like(input, fill_value, dtype=dtype)


def _shape_of(size: tuple[Any, ...]) -> tuple[Any, ...]:
    """`((2, 3), float32)`, `(2, 3)`"""
    return spread(tuple(one for one in size if not isinstance(one, torch.dtype)))


def _dtype_among(values: tuple[Any, ...]) -> Any:
    return next((value for value in values if isinstance(value, torch.dtype)), None)


@means("arange", OPS, MINT)
def arange(*ends: Any, dtype: Any = None, **named: Any) -> Tensor:
    given = [named.get(name) for name in ("start", "end", "step")]
    given[: len(ends)] = ends
    if given[1] is None:
        given[:2] = 0, given[0]
    return torch.arange(given[0] or 0, given[1], 1 if given[2] is None else given[2], dtype=dtype)


@means("linspace", OPS, MINT)
def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None) -> Tensor:
    return torch.linspace(float(start), float(end), int(steps), dtype=dtype)


@means("eye", OPS, MINT)
def eye(n: int, m: int | None = None, dtype: Any = None) -> Tensor:
    return torch.eye(n, n if m is None else m, dtype=dtype)


@means("cast Cast ToDtype", OPS, needs_context=True)
@means("astype to", METHOD, needs_context=True)
def cast(context: Context, input: Any, dtype: Any, *_: Any, **__: Any) -> Any:
    """Of a floating dtype the replay has another, which was given here; of its name not."""
    if isinstance(dtype, str):
        dtype = context.precision.dtype(torch_dtype(dtype))
    if not isinstance(dtype, torch.dtype):
        raise NotImplementedError("a cast to what is no dtype")
    return torch.as_tensor(input).to(dtype)


def _cast_to(dtype: torch.dtype) -> Any:
    def call(context: Context, input: Tensor) -> Tensor:
        return input.to(context.precision.dtype(dtype))

    return call


for _name, _dtype in (
    ("float", torch.float32),
    ("half", torch.float16),
    ("bfloat16", torch.bfloat16),
    ("double", torch.float64),
    ("int", torch.int32),
    ("long", torch.int64),
    ("short", torch.int16),
    ("byte", torch.uint8),
    ("bool", torch.bool),
):
    add(METHOD, _name, _cast_to(_dtype), needs_context=True)


@means("type_as", METHOD)
def type_as(input: Tensor, other: Tensor) -> Tensor:
    return input.to(other.dtype)


@means("stop_gradient StopGradient", OPS)
def stop_gradient(input: Tensor) -> Tensor:
    return input.detach()


@means("clone copy contiguous", METHOD)
def clone(input: Tensor) -> Tensor:
    return input.clone()


@means("Identity")
def identity(input: Tensor) -> Tensor:
    return input.view_as(input)


add(OPS, "identity", identity)
