"""What only moves elements, chooses among them or makes them: shapes, parts, joins, casts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from tensorprobe.replay.meaning.mindspore.table import (
    FUNCTIONS,
    METHOD,
    MINT,
    MINT_F,
    OPS,
    add,
    as_tuple,
    means,
    spread,
)
from tensorprobe.replay.meaning.torch import Context

Tensor = torch.Tensor
Sizes = Sequence[int]


# -- shapes ------------------------------------------------------------------------------------------------------------


@means("reshape Reshape View", *FUNCTIONS)
@means("view", METHOD)
def reshape(input: Tensor, *shape: Any) -> Tensor:
    return input.reshape(spread(shape))


@means("reshape_as view_as", METHOD)
def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    return input.reshape(other.shape)


@means("flatten", OPS)
def flatten(input: Tensor, order: str = "C", *, start_dim: int = 1, end_dim: int = -1) -> Tensor:
    if order != "C":
        raise NotImplementedError(f"order {order!r}")
    return torch.flatten(input, start_dim, end_dim)


@means("Flatten")
def flatten_primitive(input: Tensor) -> Tensor:
    return input.reshape(input.shape[0], -1)


@means("flatten", MINT)
def flatten_mint(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    return torch.flatten(input, start_dim, end_dim)


@means("flatten", METHOD)
def flatten_method(input: Tensor, order: Any = "C", *rest: int, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    if isinstance(order, int):
        return torch.flatten(input, order, *(rest or (end_dim,)))
    return flatten(input, order, start_dim=start_dim, end_dim=end_dim)


@means("ravel", OPS, METHOD)
def ravel(input: Tensor) -> Tensor:
    return input.reshape(-1)


@means("transpose permute Transpose", OPS)
def permute(input: Tensor, dims: Sizes) -> Tensor:
    return input.permute(*dims)


@means("permute", MINT)
def permute_mint(input: Tensor, dims: Sizes) -> Tensor:
    return input.permute(*dims)


@means("permute", METHOD)
def permute_method(input: Tensor, *dims: Any) -> Tensor:
    return input.permute(*spread(dims))


@means("transpose", METHOD)
def transpose_method(input: Tensor, *dims: Any, dim0: int | None = None, dim1: int | None = None) -> Tensor:
    """All dimensions in their new order; two of a tensor that has more are exchanged; none is all the other way."""
    order = spread(dims)
    if dim0 is not None and dim1 is not None:
        return input.transpose(dim0, dim1)
    if len(order) == 2 and input.dim() != 2:
        return input.transpose(*order)
    return input.permute(*(order or range(input.dim() - 1, -1, -1)))


@means("swapaxes", *FUNCTIONS)
@means("swapdims", OPS, METHOD)
def swapaxes(input: Tensor, dim0: int, dim1: int) -> Tensor:
    return input.transpose(dim0, dim1)


@means("transpose TransposeExtView", MINT)
def transpose_mint(input: Tensor, dim0: int, dim1: int) -> Tensor:
    return input.transpose(dim0, dim1)


@means("t", OPS, MINT, METHOD)
def t(input: Tensor) -> Tensor:
    return input.t()


@means("movedim moveaxis", OPS, METHOD)
def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    return torch.movedim(input, source, destination)


@means("unsqueeze ExpandDims", *FUNCTIONS)
@means("expand_dims", OPS, METHOD)
def unsqueeze(input: Tensor, dim: int) -> Tensor:
    return input.unsqueeze(dim)


@means("squeeze Squeeze", *FUNCTIONS)
def squeeze(input: Tensor, dim: Any = None) -> Tensor:
    return input.squeeze() if dim is None or dim == () else input.squeeze(as_tuple(dim))


@means("broadcast_to BroadcastTo", *FUNCTIONS)
def broadcast_to(input: Tensor, shape: Sizes) -> Tensor:
    return input.expand(*shape)


@means("expand", METHOD)
def expand(input: Tensor, *size: Any) -> Tensor:
    return input.expand(*spread(size))


@means("expand_as", METHOD, OPS)
def expand_as(input: Tensor, other: Tensor) -> Tensor:
    return input.expand_as(other)


@means("tile Tile", *FUNCTIONS)
def tile(input: Tensor, *dims: Any) -> Tensor:
    return input.tile(spread(dims))


@means("repeat", METHOD)
def repeat(input: Tensor, *repeats: Any) -> Tensor:
    return input.repeat(*spread(repeats))


@means("repeat_interleave", *FUNCTIONS)
def repeat_interleave(input: Tensor, repeats: Any, dim: int | None = None) -> Tensor:
    repeats = torch.tensor(repeats) if isinstance(repeats, (tuple, list)) else repeats
    return torch.repeat_interleave(input, repeats, dim)


# -- joins and parts ---------------------------------------------------------------------------------------------------


@means("cat concat", OPS, MINT)
def concatenate(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return torch.cat(list(tensors), dim)


@means("Concat")
def concatenate_primitive(*tensors: Any, dim: int | None = None) -> Tensor:
    """Its axis is a setting, or what stands behind the tensors."""
    *parts, last = tensors
    if not isinstance(last, int):
        return torch.cat(list(spread(tensors)), dim or 0)
    return torch.cat(list(spread(tuple(parts))), last)


@means("stack", OPS, MINT)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return torch.stack(list(tensors), dim)


@means("Stack Pack")
def stack_primitive(*tensors: Any, dim: int = 0) -> Tensor:
    *parts, last = tensors
    if isinstance(last, int):
        tensors, dim = tuple(parts), last
    return torch.stack(list(spread(tensors)), dim)


@means("split", OPS, METHOD)
def split(tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(torch.split(tensor, _sizes(split_size_or_sections), dim))


@means("split", MINT)
def split_mint(tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(torch.split(tensor, _sizes(split_size_or_sections), dim))


def _sizes(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@means("Split")
def split_primitive(input: Tensor, dim: int = 0, output_num: int = 1) -> tuple[Tensor, ...]:
    return tuple(torch.split(input, input.shape[dim] // output_num, dim))


@means("SplitTensor SplitWithSize")
def split_kernel(input: Tensor, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(torch.split(input, _sizes(split_size), dim))


@means("chunk Chunk", *FUNCTIONS)
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(torch.chunk(input, chunks, dim))


@means("tensor_split", OPS, METHOD)
def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(torch.tensor_split(input, indices_or_sections, dim))


@means("unbind Unstack Unpack", *FUNCTIONS)
@means("unstack", OPS)
def unbind(input: Tensor, dim: int = 0, num: int | None = None) -> tuple[Tensor, ...]:
    return tuple(torch.unbind(input, dim))


@means("flip", *FUNCTIONS)
def flip(input: Tensor, *dims: Any) -> Tensor:
    return input.flip(spread(dims))


@means("ReverseV2", OPS)
def reverse(input: Tensor, dim: Any) -> Tensor:
    return input.flip(as_tuple(dim))


add(OPS, "reverse", reverse)


@means("roll", *FUNCTIONS)
def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    return torch.roll(input, shifts, dims)


@means("narrow", *FUNCTIONS)
def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    return input.narrow(dim, int(start), length)


@means("tril Tril", *FUNCTIONS)
def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    return torch.tril(input, diagonal)


@means("triu Triu", *FUNCTIONS)
def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    return torch.triu(input, diagonal)


@means("StridedSlice")
def strided_slice(
    input: Tensor,
    begin: Sizes,
    end: Sizes,
    strides: Sizes,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> Tensor:
    if ellipsis_mask or any(step < 0 for step in strides):
        raise NotImplementedError("a slice with an ellipsis, or backwards")
    index: list[Any] = []
    for place, (first, last, step) in enumerate(zip(begin, end, strides, strict=True)):
        bit = 1 << place
        if new_axis_mask & bit:
            index.append(None)
        elif shrink_axis_mask & bit:
            index.append(first)
        else:
            index.append(slice(None if begin_mask & bit else first, None if end_mask & bit else last, step))
    return input[tuple(index)]


@means("strided_slice", OPS)
def strided_slice_function(input: Tensor, begin: Sizes, end: Sizes, strides: Sizes, *masks: int, **named: int) -> Tensor:
    return strided_slice(input, begin, end, strides, *masks, **named)


@means("slice Slice", OPS)
def slice_part(input: Tensor, begin: Sizes, size: Sizes) -> Tensor:
    parts = zip(begin, size, strict=True)
    return input[tuple(slice(first, None if count == -1 else first + count) for first, count in parts)]


@means("SliceExt")
def slice_kernel(input: Tensor, dim: int, start: int, end: int, step: int = 1) -> Tensor:
    return input[(slice(None),) * (dim % input.dim()) + (slice(start, end, step),)]


@means("SelectExtView")
def select_kernel(input: Tensor, dim: int, index: int) -> Tensor:
    return input.select(dim, index)


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


# -- by indices --------------------------------------------------------------------------------------------------------


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
    if isinstance(first, int) or "dim" in named and isinstance(named.get("index", second), Tensor) and first is None:
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


@means("tensor_scatter_elements TensorScatterElements", OPS)
def tensor_scatter_elements(input: Tensor, index: Tensor, updates: Tensor, dim: int = 0, reduction: str = "none") -> Tensor:
    if reduction == "add":
        return input.scatter_add(dim, index.long(), updates)
    return input.scatter(dim, index.long(), updates)


@means("scatter", OPS, METHOD)
def scatter(input: Tensor, dim: int, index: Tensor, src: Any) -> Tensor:
    return input.scatter(dim, index.long(), src)


@means("index_add", MINT)
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    return input.index_add(dim, index.long(), source, alpha=alpha)


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


# -- made anew, or another dtype ---------------------------------------------------------------------------------------


@means("zeros Zeros", OPS, MINT)
def zeros(*size: Any, dtype: Any = None) -> Tensor:
    *shape, last = size
    shape, dtype = (size, dtype) if not isinstance(last, torch.dtype) else (tuple(shape), last)
    return torch.zeros(spread(tuple(shape)), dtype=dtype)


@means("ones Ones", OPS, MINT)
def ones(*size: Any, dtype: Any = None) -> Tensor:
    *shape, last = size
    shape, dtype = (size, dtype) if not isinstance(last, torch.dtype) else (tuple(shape), last)
    return torch.ones(spread(tuple(shape)), dtype=dtype)


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


@means("cast Cast ToDtype", OPS)
@means("astype to", METHOD)
def cast(input: Any, dtype: Any, *_: Any, **__: Any) -> Any:
    """Of a floating dtype the replay has another, which was given here."""
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
