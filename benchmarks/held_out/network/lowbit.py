"""A frozen layer of packed four-bit codes with an adapter, then learned steps of quantization, straight through."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

ENTER, WIDTH, OUT, RANK, ALPHA, BLOCK, UNIT = 8, 12, 5, 2, 6, 4, 0.15
_RANDOM = np.random.default_rng(46)
LEVELS = np.tanh(np.linspace(-1.5, 1.5, 16)).astype(np.float32)
PACKED = _RANDOM.integers(256, size=(WIDTH, ENTER // 2)).astype(np.uint8)
LARGEST = _RANDOM.integers(60, 256, size=(WIDTH, ENTER // BLOCK)).astype(np.uint8)


class Quantize(torch.autograd.Function):
    """Whole steps between two bounds. Gradients pass where nothing is cut; that of the step is made smaller."""

    @staticmethod
    def forward(ctx, x, step, low, high):
        ctx.save_for_backward(x, step)
        ctx.bounds = low, high
        return torch.clamp(torch.round(x / step), low, high) * step  # @ratio @clip @bounded @round @steps

    @staticmethod
    def backward(ctx, gradient):
        (x, step), (low, high) = ctx.saved_tensors, ctx.bounds
        ratio = x / step
        inside = (ratio >= low) & (ratio <= high)
        slope = torch.where(inside, ratio.round() - ratio, ratio.clamp(low, high))
        factor = (x.numel() / step.numel() * high) ** -0.5  # @factor
        return gradient * inside, (gradient * slope).sum_to_size(step.shape) * factor, None, None  # @clip @smaller


class Packed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.packed, self.largest = torch.from_numpy(PACKED), torch.from_numpy(LARGEST)
        self.levels = torch.from_numpy(LEVELS)
        self.down, self.up = torch.nn.Linear(ENTER, RANK, bias=False), torch.nn.Linear(RANK, WIDTH, bias=False)
        self.bias = torch.nn.Parameter(torch.zeros(WIDTH))

    def unpack(self):
        codes = torch.stack([self.packed & 15, self.packed >> 4], dim=-1).flatten(1)  # @codes
        scales = self.largest.float() / 255  # @scales
        return self.levels[codes.long()] * scales.repeat_interleave(BLOCK, dim=1)  # @levels @blocks @base

    def forward(self, x):
        return F.linear(x, self.unpack(), self.bias) + self.up(self.down(x)) * (ALPHA / RANK)  # @linear @adapted


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Packed()
        self.weight = torch.nn.Parameter(torch.zeros(WIDTH, WIDTH))
        self.input_scale = torch.nn.Parameter(torch.ones(1))
        self.weight_scale = torch.nn.Parameter(torch.ones(WIDTH))
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, OUT)

    def forward(self, x):
        h = F.relu(self.first(x))  # @relu
        h = Quantize.apply(h, self.input_scale * UNIT, 0, 15)  # @applied @first_ratio @clip @round @steps @smaller
        weight = Quantize.apply(self.weight, self.weight_scale[:, None] * UNIT, -4, 3)  # @weights @clip @round @smaller
        return self.head(F.gelu(self.norm(F.linear(h, weight))))  # @second @norm @gelu @head


def compute_reference_loss(network, x, target):
    error = F.huber_loss(network(x), target, delta=0.8)  # @error
    return error + 0.01 * (network.first.up.weight @ network.first.down.weight).pow(2).sum()  # @change @loss


class Coded(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.packed, self.largest = ms.Tensor(PACKED.astype(np.int32)), ms.Tensor(LARGEST.astype(np.float32))
        self.levels = ms.Tensor(LEVELS)
        self.down = ms.Parameter(ops.zeros((ENTER, RANK)), name="down")
        self.up = ms.Parameter(ops.zeros((RANK, WIDTH)), name="up")
        self.bias = ms.Parameter(ops.zeros((WIDTH,)), name="bias")

    def construct(self, x):
        codes = ops.stack((self.packed % 16, self.packed // 16), axis=-1)  # @codes
        values = ops.gather(self.levels, codes.reshape(-1), 0)  # @levels
        base = values.reshape(WIDTH, -1, BLOCK) * (self.largest / 255).expand_dims(-1)  # @scales @blocks @base
        weight = base.reshape(WIDTH, ENTER).T + ops.matmul(self.down, self.up) * (ALPHA / RANK)  # @adapted
        return ops.matmul(x, weight) + self.bias  # @linear


def shrink(x, factor):
    """The same number with a smaller gradient."""
    return x * factor + ops.stop_gradient(x - x * factor)  # @smaller


def quantize(x, step, low, high):
    step = shrink(step, (x.size / step.size * high) ** -0.5)  # @factor
    ratio = ops.clamp(x / step, low, high)  # @ratio @clip @bounded
    return (ratio + ops.stop_gradient(ops.round(ratio) - ratio)) * step  # @round @steps


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first = Coded()
        self.weight = ms.Parameter(ops.zeros((WIDTH, WIDTH)), name="weight")
        self.input_scale = ms.Parameter(ops.ones((1,)), name="input_scale")
        self.weight_scale = ms.Parameter(ops.ones((1, WIDTH)), name="weight_scale")
        self.norm = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.head = nn.Dense(WIDTH, OUT)

    def construct(self, x):
        h = quantize(ops.relu(self.first(x)), self.input_scale * UNIT, 0, 15)  # @relu @first_ratio @applied
        weight = quantize(self.weight, self.weight_scale * UNIT, -4, 3)  # @weights
        return self.head(ops.gelu(self.norm(ops.matmul(h, weight))))  # @second @norm @gelu @head


def compute_candidate_loss(network, x, target):
    away = ops.abs(network(x) - target)  # @error
    near = ops.clamp(away, max=0.8)  # @error
    error = (near * (away - 0.5 * near)).mean()  # @error
    change = ops.matmul(network.first.down, network.first.up)  # @change
    return error + 0.01 * ops.square(change).sum()  # @loss


def convert(weights: Weights) -> Weights:
    converted = {"first.down": weights["first.down.weight"].T, "first.up": weights["first.up.weight"].T}
    converted |= {name: weights[name] for name in ("first.bias", "input_scale", "head.weight", "head.bias")}
    converted |= {"weight": weights["weight"].T, "weight_scale": weights["weight_scale"][None]}
    return converted | {"norm.gamma": weights["norm.weight"], "norm.beta": weights["norm.bias"]}


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(4600 + step)
    return random.normal(size=(6, ENTER)).astype(np.float32), random.normal(size=(6, OUT)).astype(np.float32)


FAULTS = (
    Fault(
        "upper half of a byte first",
        "codes",
        "(self.packed % 16, self.packed // 16)",
        "(self.packed // 16, self.packed % 16)",
    ),
    Fault("scales of a byte with sign", "scales base", "self.largest / 255", "self.largest / 127"),
    Fault("inputs may go below nothing", "applied bounded", "UNIT, 0, 15)", "UNIT, -1, 15)", has_effect=False),
    Fault("adapter not divided by its rank", "adapted", "(ALPHA / RANK)", "ALPHA"),
    Fault("weights with as many steps below as above", "weights bounded", "UNIT, -4, 3)", "UNIT, -3, 3)"),
    Fault(
        "not straight through",
        "round",
        "ratio + ops.stop_gradient(ops.round(ratio) - ratio)",
        "ops.round(ratio)",
        is_backward=True,
    ),
    Fault(
        "gradient of steps not made smaller",
        "smaller factor",
        "x * factor + ops.stop_gradient(x - x * factor)",
        "x + ops.stop_gradient(x - x)",
        is_backward=True,
    ),
    Fault(
        "reference passes gradients where it cuts",
        "clip",
        "gradient * inside, (",
        "gradient, (",
        side="reference",
        is_backward=True,
    ),
    Fault(
        "rounded down, and gelu by the hyperbolic tangent",
        "round",
        "ops.round(ratio) - ratio",
        "ops.floor(ratio) - ratio",
        second=(
            "gelu",
            "ops.gelu(self.norm(ops.matmul(h, weight)))",
            'ops.gelu(self.norm(ops.matmul(h, weight)), approximate="tanh")',
        ),
    ),
)
