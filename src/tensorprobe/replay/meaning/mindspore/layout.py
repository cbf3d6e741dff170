"""What only moves elements: shapes, joins, parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

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


@means("flatten", MINT, MINT_F)
def flatten_mint(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    return torch.flatten(input, start_dim, end_dim)


@means("flatten", METHOD)
def flatten_method(input: Tensor, order: Any = "C", *rest: int, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    if isinstance(order, int):
        return torch.flatten(input, order, *(rest or (end_dim,)))
    return flatten(input, order, start_dim=start_dim, end_dim=end_dim)


@means("ravel", *FUNCTIONS)
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
add(METHOD, "reverse", reverse)


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
def strided_slice_function(
    input: Tensor, begin: Sizes, end: Sizes, strides: Sizes, *masks: int, **named: int
) -> Tensor:
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
