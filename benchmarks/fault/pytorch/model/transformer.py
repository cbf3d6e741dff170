"""Places in models of the `transformers` library: their layers keep their class names and weights and get new code.

The replaced forwards are written here and compute what the library's do; all else of the model is the library's own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fault.place import Plan
from fault.pytorch.model.layer import GELU, Dropout, Linear, Part, ReLU

ATTENTION = "with_places"


def adopt(model: nn.Module, plan: Plan, codes: dict[str, type[nn.Module]]) -> None:
    """Give each module of these classes the forward of another; its name in records stays."""
    for module in model.modules():
        module.plan = plan  # type: ignore[assignment]  # the attention function finds it there
        code = codes.get(type(module).__name__)
        if code is not None:
            original = type(module)
            module.__class__ = type(original.__name__, (code, original), {})


class Norm(Part):
    """The root mean square norm of Llama and T5."""

    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        squares = wide.pow(2)
        mean = self.at(
            "mean",
            lambda: squares.mean(-1, keepdim=True),
            dimension=lambda: squares.mean(1, keepdim=True),
            reduction=lambda: squares.sum(-1, keepdim=True),
        )
        safe = self.at(
            "epsilon",
            lambda: mean + self.variance_epsilon,
            epsilon=lambda: mean + 1e-3,
            nan=lambda: mean - 2 * mean.min(),
        )
        root = self.at("root", lambda: torch.rsqrt(safe), precision=lambda: torch.rsqrt(safe.bfloat16()).float())
        scaled = self.at("scaled", lambda: wide * root, residual=lambda: wide, scale=lambda: wide * root.square())
        return self.at(
            "weight",
            lambda: self.weight * scaled.to(x.dtype),
            scale=lambda: (self.weight + 1) * scaled.to(x.dtype),
        )


class LinearCode(Linear):
    """torch's Linear of the library's models."""


class DropoutCode(Dropout):
    p: float


class SiLU(Part):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.at(
            "silu", lambda: F.silu(x), activation=lambda: F.gelu(x), gelu_by_hand=lambda: x * torch.sigmoid(1.702 * x)
        )


CODES: dict[str, type[nn.Module]] = {
    "Linear": LinearCode,
    "Dropout": DropoutCode,
    "SiLUActivation": SiLU,
    "SiLU": SiLU,
    "ReLU": ReLU,
    "GELUActivation": GELU,
}


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    position_bias: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """An attention function as the library takes one, registered under a name of its own."""
    plan: Plan = module.plan
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        keys = key.repeat_interleave(repeats, dim=1)
        values = plan.at(
            module,
            "groups",
            lambda: value.repeat_interleave(repeats, dim=1),
            head=lambda: value.repeat(1, repeats, 1, 1),
        )
    else:
        keys, values = key, value
    products = plan.at(
        module,
        "products",
        lambda: query @ keys.transpose(2, 3),
        swapped=(lambda: keys @ query.transpose(2, 3)) if query.shape == keys.shape else None,
        precision=lambda: (query.bfloat16() @ keys.transpose(2, 3).bfloat16()).to(query.dtype),
    )
    scores = plan.at(module, "scale", lambda: products * scaling, scale=lambda: products * (scaling * plan.factor))
    if position_bias is not None:
        bias = position_bias
        before = scores
        scores = plan.at(
            module,
            "bias",
            lambda: before + bias,
            bias=(lambda: before) if bias.requires_grad else None,  # else it is all zero
            head=(lambda: before + bias.flip(1)) if bias.requires_grad else None,
        )
    if attention_mask is not None:
        mask, unmasked = attention_mask, scores
        scores = plan.at(
            module,
            "mask",
            lambda: unmasked + mask,
            mask=lambda: unmasked + mask.roll(1, dims=-1).clamp(min=-1e4),
            residual=lambda: unmasked,
        )
    weights = plan.at(
        module,
        "softmax",
        lambda: scores.softmax(-1),
        dimension=lambda: scores.clamp(min=-1e9).softmax(-2),
        precision=lambda: scores.bfloat16().softmax(-1).to(scores.dtype),
    )
    weights = F.dropout(weights, dropout, module.training) if dropout else weights
    mixed = plan.at(
        module,
        "mix",
        lambda: weights @ values,
        operand=(lambda: weights @ keys) if keys.shape == values.shape else None,
    )
    merged = plan.at(
        module,
        "merge",
        lambda: mixed.transpose(1, 2),
        head=lambda: mixed.roll(1, dims=1).transpose(1, 2),
    )
    return merged.contiguous(), weights


def register_attention() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, eager_mask)
