"""The layers that the models are made of: MindSpore's own, with places in them. Their records have the usual names."""

from __future__ import annotations

from collections.abc import Callable

import mindspore
from mindspore import Tensor, mint, nn, ops
from mindspore.ops import operations as P

from fault.mindspore.gradient import ScaleGradient, scale_by_hook
from fault.place import Code, Plan, Value

LOW = mindspore.float16
"""Not bfloat16, of which a CPU can multiply none."""


class Part(nn.Cell):
    """A cell of the corpus: its places are in its own code."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan

    def at(self, site: str, right: Code[Value], **wrong: Code[Value] | None) -> Value:
        return self.plan.at(self, site, right, **wrong)


def pass_on(plan: Plan, owner: nn.Cell, site: str, x: Tensor) -> Tensor:
    """Nothing happens here, unless a call is inserted by fault."""
    has_gradient = plan.framework.is_grad_enabled() and x._requires_grad
    return plan.at(
        owner,
        site,
        lambda: x,
        nan=lambda: plant_nan(x),
        gradient_function=(lambda: ScaleGradient.apply(x, plan.factor)) if has_gradient else None,
        detach=(lambda: ops.stop_gradient(x)) if has_gradient else None,
    )


def plant_nan(x: Tensor) -> Tensor:
    """One NaN."""
    return ops.masked_fill(x, x == x.max(), float("nan"))


def shift(x: Tensor, axis: int) -> Tensor:
    """All elements one place further; the last becomes the first."""
    last = x.shape[axis] - 1
    return ops.cat([x.narrow(axis, last, 1), x.narrow(axis, 0, last)], axis)


class Dense(nn.Dense):
    def __init__(self, plan: Plan, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs, has_bias=bias)
        self.plan = plan

    def construct(self, x: Tensor) -> Tensor:
        return multiply(self.plan, self, lambda *args: ops.dense(*args), x)


class Linear(mint.nn.Linear):
    def __init__(self, plan: Plan, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.plan = plan

    def construct(self, x: Tensor) -> Tensor:
        return multiply(self.plan, self, lambda *args: mint.nn.functional.linear(*args), x)


def multiply(plan: Plan, owner: nn.Cell, linear: Callable[..., Tensor], x: Tensor) -> Tensor:
    """x @ weight.T + bias."""
    weight, bias = owner.weight, owner.bias if getattr(owner, "has_bias", True) else None
    more = () if bias is None else (bias,)
    low = () if bias is None else (bias.astype(LOW),)
    is_square = weight.shape[0] == weight.shape[1]
    half = weight.shape[1] // 2
    y = plan.at(
        owner,
        "linear",
        lambda: linear(x, weight, *more),
        transposed=(lambda: linear(x, weight.swapaxes(0, 1), *more)) if is_square else None,
        bias=(lambda: linear(x, weight)) if bias is not None else None,
        precision=lambda: linear(x.astype(LOW), weight.astype(LOW), *low).astype(x.dtype),
        split_linear=lambda: linear(x[..., :half], weight[:, :half], *more) + linear(x[..., half:], weight[:, half:]),
        gradient_hook=lambda: scale_by_hook(linear(x, weight, *more), plan.factor),
    )
    return pass_on(plan, owner, "result", y)


class LayerNorm(nn.LayerNorm):
    def __init__(self, plan: Plan, width: int) -> None:
        super().__init__((width,), epsilon=1e-5)
        self.plan = plan
        self.other_norm = P.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=1e-3)

    def construct(self, x: Tensor) -> Tensor:
        gamma, beta = self.gamma, self.beta
        return self.plan.at(
            self,
            "norm",
            lambda: self.layer_norm(x, gamma, beta)[0],
            epsilon=lambda: self.other_norm(x, gamma, beta)[0],
            bias=lambda: self.layer_norm(x, gamma, ops.zeros_like(beta))[0],
            precision=lambda: self.layer_norm(x.astype(LOW), gamma.astype(LOW), beta.astype(LOW))[0].astype(x.dtype),
            gradient_hook=lambda: scale_by_hook(self.layer_norm(x, gamma, beta)[0], self.plan.factor),
        )


class GELU(Part):
    def construct(self, x: Tensor) -> Tensor:
        return self.at(
            "gelu",
            lambda: ops.gelu(x, approximate="none"),
            gelu=lambda: ops.gelu(x, approximate="tanh"),
            gelu_by_hand=lambda: 0.5 * x * (1 + ops.tanh(0.7978845608 * (x + 0.044715 * ops.pow(x, 3)))),
            activation=lambda: ops.silu(x),
        )


class ReLU(Part):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.relu = P.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        return self.at("relu", lambda: self.relu(x), activation=lambda: ops.leaky_relu(x, 0.01))


class Dropout(Part):
    def __init__(self, plan: Plan, share: float) -> None:
        super().__init__(plan)
        self.p = share

    def construct(self, x: Tensor) -> Tensor:
        return self.at(
            "dropout",
            lambda: ops.dropout(x, self.p, self.training),
            dropout_state=lambda: ops.dropout(x, self.p, not self.training),
            dropout_share=(lambda: ops.dropout(x, self.p * 2, True)) if self.training else None,
        )


def add_residual(part: Part, site: str, x: Tensor, y: Tensor) -> Tensor:
    has_gradient = part.plan.framework.is_grad_enabled() and x._requires_grad
    return part.at(
        site,
        lambda: x + y,
        residual=lambda: y,
        operand=lambda: y + y,
        detach=(lambda: ops.stop_gradient(x) + y) if has_gradient else None,
        gradient_hook=lambda: scale_by_hook(x + y, part.plan.factor),
    )


def make_loss(plan: Plan) -> Callable[[Tensor, Tensor], Tensor]:
    """Cross entropy, outside all cells."""

    def compute(logits: Tensor, labels: Tensor) -> Tensor:
        return plan.at(
            None,
            "loss",
            lambda: ops.cross_entropy(logits, labels),
            reduction=lambda: ops.cross_entropy(logits, labels, reduction="sum"),
            smoothing=lambda: ops.cross_entropy(logits, labels, label_smoothing=0.1),
        )

    return compute
