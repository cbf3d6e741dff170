"""Products of matrices that have no kernel in float64: in groups, and of scaled float8."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tensorprobe.replay.meaning.registry import build_in


@build_in("Torch._grouped_mm", "Functional.grouped_mm", "Ops.aten._grouped_mm")
def multiply_groups(
    first: Tensor, second: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None
) -> Tensor:
    """One product for each group. `offs` says where the groups end: in the rows of the first matrix if the second has
    one for each group, in the columns of the second if the first has, in what is summed over if neither has."""
    if bias is not None:
        raise NotImplementedError("a bias")
    if offs is None:
        return first @ second
    ranges = list(pairwise([0, *(int(end) for end in offs)]))
    if first.dim() == 2 and second.dim() == 3:
        rows = [first[start:end] @ second[group] for group, (start, end) in enumerate(ranges)]
        behind = first.size(0) - ranges[-1][1]  # rows of no group
        return torch.cat([*rows, first.new_zeros(behind, second.size(-1))])
    if first.dim() == 3 and second.dim() == 2:
        columns = [first[group] @ second[:, start:end] for group, (start, end) in enumerate(ranges)]
        return torch.cat([*columns, first.new_zeros(first.size(1), second.size(1) - ranges[-1][1])], -1)
    if first.dim() == second.dim() == 2:
        return torch.stack([first[:, start:end] @ second[start:end] for start, end in ranges])
    raise NotImplementedError("groups of matrices that are in groups already")


@build_in("Torch._scaled_mm", "Ops.aten._scaled_mm")
def multiply_scaled(
    first: Tensor, second: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    scale_result: Tensor | None = None, out_dtype: Any = None, use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """(first · scale_a) @ (second · scale_b) + bias, with one scale for a matrix, or one for each row or column."""
    if scale_result is not None:
        raise NotImplementedError("scale_result")
    result = (first * _check_scale(scale_a, first)) @ (second * _check_scale(scale_b, second))
    return result if bias is None else result + bias


@build_in("Torch._scaled_mm_v2", "Ops.aten._scaled_mm_v2")
def multiply_by_recipe(
    first: Tensor, second: Tensor, scale_a: list[Tensor], recipe_a: list[int], swizzle_a: list[int],
    scale_b: list[Tensor], recipe_b: list[int], swizzle_b: list[int], bias: Tensor | None = None, *_: Any, **__: Any,
) -> Tensor:  # fmt: skip
    """What `F.scaled_mm` calls, with one scale for a matrix, or one for each row or column."""
    if len(scale_a) != 1 or len(scale_b) != 1 or any((*swizzle_a, *swizzle_b)):
        raise NotImplementedError("scales of blocks")
    return multiply_scaled(first, second, scale_a[0], scale_b[0], bias)


def _check_scale(scale: Tensor, matrix: Tensor) -> Tensor:
    """One for the matrix, or for each row or column of it: this multiplies as it is."""
    is_plain = scale.numel() == 1 or (
        scale.dim() == 2 and all(n in (1, m) for n, m in zip(scale.shape, matrix.shape, strict=True))
    )
    if not is_plain or scale.shape == matrix.shape != torch.Size((1, 1)):
        raise NotImplementedError("scales of blocks")
    return scale
