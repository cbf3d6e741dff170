"""Faults that only the backward sees: the forward computes the same bits."""

from __future__ import annotations

from typing import Any

import torch


def scale_by_hook(x: torch.Tensor, factor: float) -> torch.Tensor:
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * factor)
    return x


class ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] * ctx.factor, None
