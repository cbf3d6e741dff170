"""What chooses elements, or writes to them, by indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorprobe.replay.meaning.mindspore.table import (
    FUNCTIONS,
    METHOD,
    MINT,
    MINT_F,
    OPS,
    PRIMITIVE,
    add,
    means,
)
from tensorprobe.replay.meaning.torch import Context

Sizes = Sequence[int]


@means("__getitem__", METHOD)
def get_item(input: Tensor, index: Any) -> Tensor:
    return input[_index(index)]


@means("__setitem__", METHOD)
def set_item(input: Tensor, index: Any, value: Any) -> Tensor:
    changed = input.clone()
    changed[_index(index)] = value.to(input.dtype) if isinstance(value, Tensor) else value
    return changed


def _index(index: Any) -> Any:
    """Torch takes no 32 bits for an index."""
    if isinstance(index, Tensor):
        return index.long() if index.dtype in (torch.int32, torch.int16, torch.int8) else index
    return tuple(map(_index, index)) if isinstance(index, tuple) else index


@means("gather Gather", OPS)
def gather(input: Tensor, index: Any, dim: int, batch_dims: int = 0) -> Tensor:
    """Whole parts along an axis, by indices of any shape."""
    if batch_dims:
        raise NotImplementedError("batch_dims")
    index = torch.as_tensor(index).long()
    dim = int(dim) % input.dim()
    parts = input.index_select(dim, index.reshape(-1))
    return parts.reshape(*input.shape[:dim], *index.shape, *input.shape[dim + 1 :])


@means("gather_elements gather_d GatherD", OPS)
def gather_elements(input: Tensor, dim: int, index: Tensor) -> Tensor:
    return torch.gather(input, dim, index.long())


@means("gather", MINT, METHOD)
def gather_mint(input: Tensor, first: Any = None, second: Any = None, *rest: Any, **named: Any) -> Tensor:
    """The method has two forms: `(dim, index)`, and `(input_indices, axis)`."""
    if isinstance(first, int) or ("dim" in named and isinstance(named.get("index", second), Tensor) and first is None):
        dim, index = (first, named.get("index", second)) if first is not None else (named["dim"], named["index"])
        return torch.gather(input, dim, index.long())
    axis = named["dim"] if second is None else second
    return gather(input, named.get("input_indices", first), axis, *rest)


@means("GatherNd gather_nd", OPS, METHOD)
def gather_nd(input: Tensor, index: Tensor) -> Tensor:
    return input[tuple(index.long().unbind(-1))]


@means("index_select", *FUNCTIONS)
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    return torch.index_select(input, dim, index.long())


@means("masked_select", *FUNCTIONS)
def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    return torch.masked_select(input, mask)


@means("TensorScatterElements")
def tensor_scatter_elements_primitive(
    input: Tensor, index: Tensor, updates: Tensor, dim: int = 0, reduce: Any = "none", reduction: str = "none"
) -> Tensor:
    """What it is made with is called `reduction`, and recorded as `reduce`; a kernel has a number for it."""
    is_sum = "add" in (reduce, reduction) or reduce == 1
    return tensor_scatter_elements(input, index, updates, dim, "add" if is_sum else "none")


@means("tensor_scatter_elements", OPS)
def tensor_scatter_elements(
    input: Tensor, index: Tensor, updates: Tensor, dim: int = 0, reduction: str = "none"
) -> Tensor:
    if reduction == "add":
        return input.scatter_add(dim, index.long(), updates)
    return input.scatter(dim, index.long(), updates)


@means("scatter", *FUNCTIONS)
def scatter(input: Tensor, dim: int, index: Tensor, src: Any) -> Tensor:
    return input.scatter(dim, index.long(), src)


@means("unsorted_segment_sum UnsortedSegmentSum", OPS)
def unsorted_segment_sum(input: Tensor, segment_ids: Tensor, num_segments: Any) -> Tensor:
    """Parts with the same number are added up; those with a number below zero are left out."""
    parts, index = _find_segments(input, segment_ids)
    return parts.new_zeros(int(num_segments), *parts.shape[1:]).index_add(0, index, parts)


def _find_extreme(reduce: str) -> Any:
    def call(context: Context, input: Tensor, segment_ids: Tensor, num_segments: Any) -> Tensor:
        """An empty segment has the last number that the recorded dtype can hold."""
        parts, index = _find_segments(input, segment_ids)
        has_empty = len(torch.unique(index)) < int(num_segments)
        last = _find_last(context.recorded_inputs(0).dtype, reduce) if has_empty else 0
        places = index.reshape(-1, *[1] * (parts.dim() - 1)).expand_as(parts)
        empty = parts.new_full((int(num_segments), *parts.shape[1:]), last)
        return empty.scatter_reduce(0, places, parts, reduce, include_self=False)

    return call


def _find_last(dtype: torch.dtype, reduce: str) -> float:
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return float(limits.min if reduce == "amax" else limits.max)


def _find_segments(input: Tensor, segment_ids: Tensor) -> tuple[Tensor, Tensor]:
    index = segment_ids.long().reshape(-1)
    parts = input.reshape(len(index), *input.shape[segment_ids.dim() :])
    return parts[index >= 0], index[index >= 0]


for _name, _reduce in (("max", "amax"), ("min", "amin")):
    add(OPS, f"unsorted_segment_{_name}", _find_extreme(_reduce), needs_context=True)
    add(PRIMITIVE, f"UnsortedSegment{_name.capitalize()}", _find_extreme(_reduce), needs_context=True)
add(METHOD, "gather_elements", gather_elements)


@means("index_add", MINT)
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    return input.index_add(dim, index.long(), source, alpha=alpha)


@means("index_add", OPS, METHOD)
def index_add_old(input: Tensor, index: Tensor, y: Tensor, dim: int, *_: Any, **__: Any) -> Tensor:
    return input.index_add(dim, index.long(), y)


@means("embedding", MINT_F)
def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None, *rest: Any, **named: Any) -> Tensor:
    if any(one not in (None, False, 2.0) for one in (*rest, *named.values())):
        raise NotImplementedError("an embedding that renorms or scales")
    return F.embedding(input.long(), weight, padding_idx)


@means("one_hot", OPS)
def one_hot(index: Tensor, depth: int, on_value: Any = 1, off_value: Any = 0, dim: int = -1) -> Tensor:
    places = torch.arange(int(depth), device=index.device)
    is_on = (index.unsqueeze(-1) == places).movedim(-1, dim if dim >= 0 else index.dim() + 1 + dim)
    on, off = (torch.as_tensor(value, device=index.device).detach() for value in (on_value, off_value))
    return torch.where(is_on, on, off)


@means("OneHot")
def one_hot_primitive(index: Tensor, depth: int, on_value: Any, off_value: Any, dim: int = -1) -> Tensor:
    return one_hot(index, depth, on_value, off_value, dim)


@means("one_hot", MINT_F)
def one_hot_mint(tensor: Tensor, num_classes: int = -1) -> Tensor:
    return F.one_hot(tensor.long(), num_classes)
