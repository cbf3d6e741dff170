"""What is written into a tensor's parts: by lists of places, by rows, by numbers of segments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensorprobe.replay.meaning.mindspore.table import METHOD, OPS, PRIMITIVE, add, means

_WAYS = {"add": "sum", "sub": "sum", "max": "amax", "min": "amin", "mul": "prod", "div": "prod"}


@means("scatter_nd ScatterNd", OPS)
def scatter_nd(index: Tensor, updates: Tensor, shape: Any) -> Tensor:
    """What is written to one place more than once is added up."""
    empty = updates.new_zeros(tuple(int(one) for one in shape))
    return empty.index_put(tuple(index.long().unbind(-1)), updates, accumulate=True)


def _write_parts(input: Tensor, index: Tensor, updates: Tensor, way: str) -> Tensor:
    """`index`: of each part, the place of its first element among all parts."""
    count = len(index)
    rest = updates.numel() // max(count, 1)
    rows, parts = input.reshape(-1, rest), updates.reshape(count, rest)
    if way == "update":
        return rows.index_put((index,), parts).reshape(input.shape)
    if way == "sub":
        parts = -parts
    if way == "div":
        parts = 1 / parts
    places = index.reshape(-1, 1).expand_as(parts)
    return rows.scatter_reduce(0, places, parts, _WAYS[way]).reshape(input.shape)


def _by_places(way: str) -> Any:
    def call(input: Tensor, index: Tensor, updates: Tensor, *_: Any, **__: Any) -> Tensor:
        places = index.long().reshape(-1, index.shape[-1])
        flat = torch.zeros_like(places[:, 0])
        for dim in range(places.shape[1]):
            flat = flat * input.shape[dim] + places[:, dim]
        return _write_parts(input, flat, updates, way)

    return call


def _by_rows(way: str) -> Any:
    def call(input: Tensor, index: Tensor, updates: Tensor, *_: Any, **__: Any) -> Tensor:
        return _write_parts(input, index.long().reshape(-1), updates, way)

    return call


for _way in ("update", *_WAYS):
    add(OPS, f"tensor_scatter_{_way}", _by_places(_way))
    add(PRIMITIVE, f"TensorScatter{_way.capitalize()}", _by_places(_way))
    add(OPS, f"scatter_nd_{_way}", _by_places(_way))
    if _way != "sub":
        add(OPS, f"scatter_{_way}", _by_rows(_way))
for _way in ("sub", "max", "min", "mul", "div"):
    add(METHOD, f"scatter_{_way}", _by_places(_way))


@means("index_fill", OPS, METHOD)
def index_fill(input: Tensor, dim: Any, index: Tensor, value: Any) -> Tensor:
    filled = torch.as_tensor(value, dtype=input.dtype, device=input.device)
    return input.index_fill(int(dim), index.long(), filled)


@means("unsorted_segment_prod UnsortedSegmentProd", OPS)
def unsorted_segment_prod(input: Tensor, segment_ids: Tensor, num_segments: Any) -> Tensor:
    """An empty segment is one; parts with a number below zero are left out."""
    index = segment_ids.long().reshape(-1)
    parts = input.reshape(len(index), *input.shape[segment_ids.dim() :])
    parts, index = parts[index >= 0], index[index >= 0]
    ones = parts.new_ones(int(num_segments), *parts.shape[1:])
    places = index.reshape(-1, *[1] * (parts.dim() - 1)).expand_as(parts)
    return ones.scatter_reduce(0, places, parts, "prod")
