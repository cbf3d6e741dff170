"""Results whose gradients are those recorded: of a call that cannot be made again, and in the recorded precision of an
autograd Function, whose own backward is code that nobody has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Load = Callable[[str], torch.Tensor | None]
"""The recorded gradient of an argument, by its place; None where there is none."""


class _Recorded(torch.autograd.Function):  # type: ignore[misc]
    """Stands between arguments and results. Its forward hands out the results, its backward what was recorded."""

    @staticmethod
    def forward(ctx: Any, load: Load, slots: Sequence[str], results: Sequence[torch.Tensor], *inputs: Any) -> Any:
        ctx.load, ctx.slots = load, slots
        return tuple(result.detach() for result in results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        found = [ctx.load(slot) for slot in ctx.slots]
        return (None, None, None, *found)


def pin_gradients(
    results: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor], load: Load
) -> Mapping[str, torch.Tensor]:
    """The same results, with the recorded gradients behind them."""
    followed = {slot: tensor for slot, tensor in inputs.items() if tensor.requires_grad}
    differentiable = {slot: result for slot, result in results.items() if result.is_floating_point()}
    if not followed or not differentiable or not torch.is_grad_enabled():
        return results
    found = _Recorded.apply(load, tuple(followed), tuple(differentiable.values()), *followed.values())
    return {**results, **dict(zip(differentiable, found, strict=True))}
