"""The layers that the models are made of: torch's own, with places in them. Their records have the usual names."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from fault.place import Code, Plan, Value
from fault.pytorch.gradient import ScaleGradient, scale_by_hook


class Part(nn.Module):
    """A module of the corpus: its places are in its own code."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan

    def at(self, site: str, right: Code[Value], **wrong: Code[Value] | None) -> Value:
        return self.plan.at(self, site, right, **wrong)


def pass_on(plan: Plan, owner: nn.Module, site: str, x: torch.Tensor) -> torch.Tensor:
    """Nothing happens here, unless a call is inserted by fault."""
    return plan.at(
        owner,
        site,
        lambda: x,
        nan=lambda: plant_nan(x),
        gradient_function=(lambda: ScaleGradient.apply(x, plan.factor)) if x.requires_grad else None,
        detach=(lambda: x.detach()) if x.requires_grad else None,
    )


def plant_nan(x: torch.Tensor) -> torch.Tensor:
    """One NaN."""
    return x.masked_fill(x == x.max(), float("nan"))


class Linear(nn.Linear):
    def __init__(self, plan: Plan, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias)
        self.plan = plan

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weight, self.bias
        is_square = weight.shape[0] == weight.shape[1]
        y = self.plan.at(
            self,
            "linear",
            lambda: F.linear(x, weight, bias),
            transposed=(lambda: F.linear(x, weight.t(), bias)) if is_square else None,
            bias=(lambda: F.linear(x, weight)) if bias is not None else None,
            precision=lambda: multiply_in_bfloat16(x, weight, bias),
            split_linear=lambda: multiply_in_halves(x, weight, bias),
            gradient_hook=lambda: scale_by_hook(F.linear(x, weight, bias), self.plan.factor),
        )
        return pass_on(self.plan, self, "result", y)


def multiply_in_halves(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    half = weight.shape[1] // 2
    return F.linear(x[..., :half], weight[:, :half], bias) + F.linear(x[..., half:], weight[:, half:])


def multiply_in_bfloat16(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    low = None if bias is None else bias.bfloat16()
    return F.linear(x.bfloat16(), weight.bfloat16(), low).to(x.dtype)


class LayerNorm(nn.LayerNorm):
    def __init__(self, plan: Plan, width: int) -> None:
        super().__init__(width)
        self.plan = plan

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape, weight, bias = self.normalized_shape, self.weight, self.bias
        return self.plan.at(
            self,
            "norm",
            lambda: F.layer_norm(x, shape, weight, bias, self.eps),
            epsilon=lambda: F.layer_norm(x, shape, weight, bias, 1e-3),
            bias=lambda: F.layer_norm(x, shape, weight, None, self.eps),
            precision=lambda: F.layer_norm(x.bfloat16(), shape, weight.bfloat16(), bias.bfloat16()).to(x.dtype),
            gradient_hook=lambda: scale_by_hook(F.layer_norm(x, shape, weight, bias, self.eps), self.plan.factor),
        )


class RMSNorm(Part):
    """Written out, the small number a buffer: no argument gives a wrong one away."""

    def __init__(self, plan: Plan, width: int) -> None:
        super().__init__(plan)
        self.weight = nn.Parameter(torch.ones(width))
        self.register_buffer("small", torch.tensor(1e-6), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squares = x.pow(2)
        mean = self.at(
            "mean",
            lambda: squares.mean(-1, keepdim=True),
            dimension=lambda: squares.mean(1, keepdim=True),
            reduction=lambda: squares.sum(-1, keepdim=True),
        )
        safe = self.at(
            "epsilon",
            lambda: mean + self.small,
            epsilon=lambda: mean + self.small * 1e4,
            nan=lambda: mean - mean.max(),
        )
        root = self.at("root", lambda: safe.rsqrt(), precision=lambda: safe.bfloat16().rsqrt().to(x.dtype))
        scaled = self.at("scale", lambda: x * root, operand=lambda: root * root)
        return self.at("weight", lambda: scaled * self.weight, scale=lambda: scaled * (self.weight + 1))


class GELU(Part):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.at(
            "gelu",
            lambda: F.gelu(x),
            gelu=lambda: F.gelu(x, approximate="tanh"),
            gelu_by_hand=lambda: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3))),
            activation=lambda: F.silu(x),
        )


class ReLU(Part):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.at(
            "relu",
            lambda: F.relu(x),
            activation=lambda: F.leaky_relu(x, 0.01),
        )


class Dropout(Part):
    def __init__(self, plan: Plan, share: float) -> None:
        super().__init__(plan)
        self.p = share

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.at(
            "dropout",
            lambda: F.dropout(x, self.p, self.training),
            dropout_state=(lambda: F.dropout(x, self.p, not self.training)) if self.p else None,
            dropout_share=(lambda: F.dropout(x, self.p * 2, True)) if self.training and self.p else None,
        )


def add_residual(part: Part, site: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return part.at(
        site,
        lambda: x + y,
        residual=lambda: y,
        operand=lambda: y + y,
        detach=(lambda: x.detach() + y) if x.requires_grad else None,
        gradient_hook=lambda: scale_by_hook(x + y, part.plan.factor),
    )


def make_loss(plan: Plan, ignore: int = -100) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Cross entropy, outside all modules."""

    def compute(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return plan.at(
            None,
            "loss",
            lambda: F.cross_entropy(logits, labels),
            reduction=lambda: F.cross_entropy(logits, labels, reduction="sum"),
            smoothing=lambda: F.cross_entropy(logits, labels, label_smoothing=0.1),
        )

    return compute
