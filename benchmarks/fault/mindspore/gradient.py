"""Faults that only the backward sees: the forward computes the same bits."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor
from mindspore.common._grad_function import _Function


def scale_by_hook(x: Tensor, factor: float) -> Tensor:
    if x._requires_grad:
        x.register_hook(lambda gradient: gradient * factor)
    return x


class ScaleGradient(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.factor, None
