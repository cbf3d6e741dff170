"""A kernel that fills memory that `torch.empty` has handed out, as kernels do. Needs triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def double_kernel(x, result, count, block: tl.constexpr):  # type: ignore[no-untyped-def]  # triton reads annotations
    places = tl.program_id(0) * block + tl.arange(0, block)
    mask = places < count
    tl.store(result + places, tl.load(x + places, mask=mask) * 2, mask=mask)


def double(x: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 256),)](x, result, x.numel(), block=256)
    return result
