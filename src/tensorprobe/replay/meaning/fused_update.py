"""What the updates of optimizers compute that torch makes in one call, step by step, as anybody writes them.

The operators are those of torch, with their names for what they take; each writes to what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

import torch

Tensors = Sequence[torch.Tensor]
Number: TypeAlias = "float | torch.Tensor"


def _adam(*lists: Tensors, weight_decay: float, lr: Number, **settings: Any) -> None:
    _update_adam(*lists, lr=lr, decay=lambda weight, gradient: gradient + weight_decay * weight, **settings)


def _adamw(*lists: Tensors, weight_decay: float, lr: Number, **settings: Any) -> None:
    def decay(weight: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        weight.mul_(1 - lr * weight_decay)
        return gradient

    _update_adam(*lists, lr=lr, decay=decay, **settings)


def _update_adam(
    weights: Tensors,
    gradients: Tensors,
    means: Tensors,
    squares: Tensors,
    largest: Tensors,
    steps: Tensors,
    *,
    decay: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    lr: Number,
    beta1: float,
    beta2: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    _refuse_scale(grad_scale, found_inf)
    for weight, given, mean, square, most, step in zip_longest(weights, gradients, means, squares, largest, steps):
        gradient = decay(weight, -given if maximize else given)
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        if amsgrad:
            torch.maximum(most, square, out=most)
        count = float(step)
        root = ((most if amsgrad else square) / (1 - beta2**count)).sqrt()
        weight.addcdiv_(mean, root + eps, value=-float(lr) / (1 - beta1**count))


def _sgd(
    weights: Tensors,
    gradients: Tensors,
    buffers: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: Number,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    _refuse_scale(grad_scale, found_inf)
    for weight, given, buffer in zip_longest(weights, gradients, buffers):
        gradient = -given if maximize else given
        if weight_decay:
            gradient = gradient + weight_decay * weight
        if momentum and is_first_step:
            buffer.copy_(gradient)
        elif momentum:
            buffer.mul_(momentum).add_(gradient, alpha=1 - dampening)
        if momentum:
            gradient = gradient + momentum * buffer if nesterov else buffer
        weight.add_(gradient, alpha=-float(lr))


def _adagrad(
    weights: Tensors,
    gradients: Tensors,
    sums: Tensors,
    steps: Tensors,
    *,
    lr: Number,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    _refuse_scale(grad_scale, found_inf)
    for weight, given, total, step in zip(weights, gradients, sums, steps, strict=True):
        gradient = -given if maximize else given
        if weight_decay:
            gradient = gradient + weight_decay * weight
        total.addcmul_(gradient, gradient)
        weight.addcdiv_(gradient, total.sqrt() + eps, value=-float(lr) / (1 + (float(step) - 1) * lr_decay))


def _refuse_scale(*given: torch.Tensor | None) -> None:
    if any(one is not None for one in given):
        raise NotImplementedError("an update that takes a loss scale back")


_UPDATES: dict[str, Callable[..., None]] = {
    "aten::_fused_adam_": _adam,
    "aten::_fused_adamw_": _adamw,
    "aten::_fused_sgd_": _sgd,
    "aten::_fused_adagrad_": _adagrad,
}


def find_update(operator: Any) -> Callable[..., None] | None:
    """What an operator of torch does, step by step; None if it is none of these."""
    return _UPDATES.get(operator.name().partition(".")[0])
