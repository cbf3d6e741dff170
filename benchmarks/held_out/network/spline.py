"""Two layers of learned splines: by recursion over the degree in the reference, by truncated powers in the port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

ENTER, WIDTH, OUT, CELLS, DEGREE = 4, 5, 3, 5, 3
COUNT, STEP = CELLS + DEGREE, 2.0 / CELLS


class Layer(torch.nn.Module):
    def __init__(self, enter: int, out: int) -> None:
        super().__init__()
        self.base = torch.nn.Linear(enter, out)
        self.spline = torch.nn.Parameter(torch.zeros(out, enter, COUNT))
        self.factor = torch.nn.Parameter(torch.zeros(out, enter))
        self.knots = torch.arange(-DEGREE, CELLS + DEGREE + 1) * STEP - 1

    def make_basis(self, x):
        x, knots = x.unsqueeze(-1), self.knots
        basis = ((x >= knots[:-1]) & (x < knots[1:])).to(x.dtype)
        for degree in range(1, DEGREE + 1):
            rising = (x - knots[: -degree - 1]) / (knots[degree:-1] - knots[: -degree - 1])  # @rising
            falling = (knots[degree + 1 :] - x) / (knots[degree + 1 :] - knots[1:-degree])  # @falling
            basis = rising * basis[..., :-1] + falling * basis[..., 1:]  # @basis
        return basis

    def forward(self, x):
        weight = self.spline * self.factor.unsqueeze(-1)  # @weight
        curved = F.linear(self.make_basis(x).flatten(1), weight.flatten(1))  # @curved
        return self.base(F.silu(x)) + curved  # @active @base @both


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(ENTER, WIDTH), Layer(WIDTH, OUT)
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, x):
        h = torch.tanh(self.norm(self.first(x)))  # @norm @bounded
        return self.second(h)


def compute_reference_loss(network, x, target):
    error = F.smooth_l1_loss(network(x), target, beta=0.5)  # @error
    size = network.first.spline.abs().mean(dim=-1)  # @size
    share = size / size.sum()  # @share
    return error + 0.02 * size.sum() - 0.05 * (share * torch.log(share)).sum()  # @total @entropy @loss


class SplineLayer(nn.Cell):
    def __init__(self, enter: int, out: int) -> None:
        super().__init__()
        self.base = nn.Dense(enter, out)
        self.spline = ms.Parameter(ops.zeros((enter, COUNT, out)), name="spline")
        self.factor = ms.Parameter(ops.zeros((enter, 1, out)), name="factor")
        self.middles = ms.Tensor((np.arange(COUNT) - (DEGREE - 1) / 2) * STEP - 1, ms.float32)  # @middles

    def construct(self, x):
        away = ops.abs((x.expand_dims(-1) - self.middles) / STEP)  # @away
        outer, inner = ops.relu(2 - away), ops.relu(1 - away)  # @outer @inner
        basis = (outer * outer * outer - 4 * inner * inner * inner) / 6  # @cubes @basis
        weight = self.spline * self.factor  # @weight
        curved = ops.matmul(basis.reshape(len(x), -1), weight.reshape(-1, weight.shape[-1]))  # @curved
        return self.base(x * mint.sigmoid(x)) + curved  # @active @base @both


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SplineLayer(ENTER, WIDTH), SplineLayer(WIDTH, OUT)
        self.norm = nn.LayerNorm((WIDTH,), epsilon=1e-5)  # @made

    def construct(self, x):
        return self.second(ops.tanh(self.norm(self.first(x))))  # @norm @bounded


def compute_candidate_loss(network, x, target):
    error = ops.smooth_l1_loss(network(x), target, beta=0.5, reduction="mean")  # @error
    size = ops.abs(network.first.spline).mean(axis=1)  # @size
    total = size.sum()  # @total
    share = size / total  # @share
    entropy = -(share * ops.log(share)).sum()  # @entropy
    return error + 0.02 * total + 0.05 * entropy  # @loss


def convert(weights: Weights) -> Weights:
    converted = {name: array for name, array in weights.items() if ".base." in name}
    converted |= {"norm.gamma": weights["norm.weight"], "norm.beta": weights["norm.bias"]}
    for name in ("first", "second"):
        converted[f"{name}.spline"] = weights[f"{name}.spline"].transpose(1, 2, 0)
        converted[f"{name}.factor"] = weights[f"{name}.factor"].T[:, None]
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(3700 + step)
    x = random.uniform(-1.2, 1.2, size=(6, ENTER)).astype(np.float32)
    return x, random.normal(size=(6, OUT)).astype(np.float32)


FAULTS = (
    Fault("knots off by half a cell", "away", "(DEGREE - 1) / 2", "DEGREE / 2", edit="middles"),
    Fault("factor of the splines forgotten", "weight curved", "self.spline * self.factor", "self.spline"),
    Fault("default width of the smooth error", "error", "beta=0.5", "beta=1.0"),
    Fault(
        "splines pass no gradient on",
        "away",
        "x.expand_dims(-1) -",
        "ops.stop_gradient(x).expand_dims(-1) -",
        is_backward=True,
    ),
    Fault(
        "reference falls from the wrong knot",
        "falling basis",
        "(knots[degree + 1 :] - x)",
        "(knots[degree:-1] - x)",
        side="reference",
    ),
    Fault(
        "relu at the base, and entropy with the wrong sign",
        "active",
        "x * mint.sigmoid(x)",
        "ops.relu(x)",
        second=("entropy", "-(share", "(share"),
    ),
)
