"""Stacks, diagonals, grids, and parts that are put in the place of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tensorprobe.replay.meaning.mindspore.image import mirror_pad
from tensorprobe.replay.meaning.mindspore.table import METHOD, MINT, OPS, add, means, spread

Tensors = Sequence[Tensor]

add(OPS, "mirror_pad", mirror_pad)


@means("vstack", OPS)
def vstack(inputs: Tensors) -> Tensor:
    return torch.vstack(list(inputs))


@means("meshgrid", OPS)
def meshgrid(*inputs: Any, indexing: str = "xy") -> tuple[Tensor, ...]:
    return tuple(torch.meshgrid(*spread(inputs), indexing=indexing))


@means("meshgrid", MINT)
def meshgrid_mint(*tensors: Any, indexing: str | None = None) -> tuple[Tensor, ...]:
    return meshgrid(*tensors, indexing=indexing or "ij")


@means("diag Diag", OPS)
def diag(input: Tensor) -> Tensor:
    """A matrix becomes a diagonal of four dimensions."""
    return input.reshape(-1).diag().reshape(*input.shape, *input.shape)


@means("diag", METHOD)
def diag_method(input: Tensor, diagonal: int | None = None) -> Tensor:
    return diag(input) if diagonal is None else torch.diag(input, diagonal)


@means("trace", METHOD)
def trace(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1, dtype: Any = None) -> Tensor:
    return torch.diagonal(input, offset, dim1, dim2).sum(-1, dtype=dtype)


def _split_by(name: str) -> Any:
    def call(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
        return tuple(getattr(torch, name)(input, indices_or_sections))

    return call


for _name in ("hsplit", "vsplit", "dsplit"):
    for _prefix in (OPS, METHOD):
        add(_prefix, _name, _split_by(_name))


@means("repeat_elements", OPS)
def repeat_elements(input: Tensor, rep: int, dim: int = 0) -> Tensor:
    return torch.repeat_interleave(input, rep, dim)


@means("select_scatter", OPS, METHOD)
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    return torch.select_scatter(input, src, dim, index)


@means("slice_scatter", OPS, METHOD)
def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    return torch.slice_scatter(input, src, dim, start, end, step)


@means("padding", OPS)
def padding(input: Tensor, pad_dim_size: int = 8) -> Tensor:
    """The last dimension, which is one, with zeros behind it."""
    return torch.nn.functional.pad(input, (0, pad_dim_size - 1))


@means("reverse_sequence ReverseSequence", OPS)
def reverse_sequence(input: Tensor, seq_lengths: Tensor, seq_dim: int, batch_dim: int = 0) -> Tensor:
    """The first elements of each sequence, as many as it has, the other way round."""
    rows = input.movedim((batch_dim, seq_dim), (0, 1))
    lengths = seq_lengths.long().reshape(-1, 1)
    places = torch.arange(rows.shape[1], device=input.device).expand(len(rows), -1)
    turned = torch.where(places < lengths, lengths - 1 - places, places)
    turned = turned.reshape(*turned.shape, *[1] * (rows.dim() - 2)).expand_as(rows)
    return rows.gather(1, turned).movedim((0, 1), (batch_dim, seq_dim))


@means("sequence_mask", OPS)
def sequence_mask(lengths: Tensor, maxlen: int | None = None) -> Tensor:
    longest = int(lengths.max()) if maxlen is None else maxlen
    return torch.arange(longest, device=lengths.device) < lengths.unsqueeze(-1)


@means("tril_indices", OPS)
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None) -> Tensor:
    return torch.tril_indices(row, col, offset, dtype=dtype or torch.int64)


@means("triu_indices", OPS)
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None) -> Tensor:
    return torch.triu_indices(row, col, offset, dtype=dtype or torch.int64)


@means("range", OPS)
def arange(start: Any, end: Any, step: Any, maxlen: int = 0) -> Tensor:
    values = (one.item() if isinstance(one, Tensor) else one for one in (start, end, step))
    return torch.arange(*values)


add("Primitive", "Range", arange)


@means("fill", OPS)
def fill(type: Any, shape: Any, value: Any) -> Tensor:
    return torch.full(tuple(shape), value, dtype=type)


@means("fill", METHOD)
def fill_method(input: Tensor, value: Any) -> Tensor:
    return torch.zeros_like(input) + (0 if value is None else value)


@means("new_zeros", METHOD)
def new_zeros(input: Tensor, *size: Any, dtype: Any = None) -> Tensor:
    return input.new_zeros(spread(size), dtype=dtype)


@means("new_ones", METHOD)
def new_ones(input: Tensor, *size: Any, dtype: Any = None) -> Tensor:
    return input.new_ones(spread(size), dtype=dtype)


@means("hann_window", OPS)
def hann_window(window_length: int, periodic: bool = True, *, dtype: Any = None) -> Tensor:
    return torch.hann_window(window_length, periodic, dtype=dtype)
