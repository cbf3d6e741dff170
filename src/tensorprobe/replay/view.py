"""Views that no recorded call made: `.T`, `.mT`, `.real`, or what a library takes of a tensor by itself.

They are made by the operations that the program used, where these can be told, so that gradients are laid out as they
were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from tensorprobe.run.leaf import Leaf

_REAL = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}

Known = Sequence[tuple[Leaf, torch.Tensor]]
"""The tensors of one storage, the latest last."""


def view_storage(known: Known, leaf: Leaf) -> torch.Tensor | None:
    """What `leaf` shows, of one of the tensors in its storage; None where none of them shows all of it."""
    for make in (_permute, _take_part, _stride_over):
        for base, tensor in reversed(known):
            found = make(tensor, base, leaf)
            if found is not None:
                return _turn(found, base, leaf)
    return None


def _turn(found: torch.Tensor, base: Leaf, leaf: Leaf) -> torch.Tensor:
    """Conjugate or negate, as the view does and its base does not."""
    if base.is_conjugated != leaf.is_conjugated and found.is_complex():
        found = found.conj()
    return found if base.is_negated == leaf.is_negated else torch._neg_view(found)


def _permute(tensor: torch.Tensor, base: Leaf, leaf: Leaf) -> torch.Tensor | None:
    """`.T`, `.mT`: the same elements with the axes in another order."""
    if base.dtype != leaf.dtype or base.offset != leaf.offset or len(base.shape) != len(leaf.shape):
        return None
    axes = list(zip(strides_of(base), base.shape, strict=True))
    order: list[int] = []
    for axis in zip(strides_of(leaf), leaf.shape, strict=True):
        place = next((place for place, one in enumerate(axes) if one == axis and place not in order), None)
        if place is None:
            return None
        order.append(place)
    return tensor.permute(order)


def _take_part(tensor: torch.Tensor, base: Leaf, leaf: Leaf) -> torch.Tensor | None:
    """`.real`, `.imag`, with the axes in any order."""
    part = leaf.offset - 2 * base.offset
    if _REAL.get(base.dtype) != leaf.dtype or part not in (0, 1) or not tensor.is_complex():
        return None
    stride = tuple(2 * step for step in strides_of(base))
    shown = replace(base, dtype=leaf.dtype, offset=leaf.offset, stride=stride)
    return _permute((tensor.real, tensor.imag)[part], shown, leaf)


def _stride_over(tensor: torch.Tensor, base: Leaf, leaf: Leaf) -> torch.Tensor | None:
    """Any part of a tensor without gaps."""
    if base.dtype != leaf.dtype or base.is_conjugated or base.is_negated:
        return None
    stride = strides_of(base)
    order = sorted(range(len(stride)), key=lambda dim: (-stride[dim], dim))
    expected = 1
    for dim in reversed(order):
        if base.shape[dim] != 1:
            if stride[dim] != expected:
                return None  # gaps: its elements cannot be numbered by their places
            expected *= base.shape[dim]
    wanted = strides_of(leaf)
    offset = leaf.offset - base.offset
    last = offset + sum((size - 1) * step for size, step in zip(leaf.shape, wanted, strict=True) if size)
    if offset < 0 or last >= max(expected, 1) or 0 in leaf.shape:
        return None
    flat = tensor.permute(order).reshape(-1)
    return flat.as_strided(leaf.shape, wanted, flat.storage_offset() + offset)


def strides_of(leaf: Leaf) -> tuple[int, ...]:
    return leaf.stride if leaf.stride is not None else contiguous_stride(leaf.shape)


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """
    >>> contiguous_stride((2, 3, 4))
    (12, 4, 1)
    """
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))
