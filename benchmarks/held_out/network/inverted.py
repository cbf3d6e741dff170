"""Inverted residuals with moving statistics that the second step uses; weights decay in the loss, norms do not."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

WIDTH, GROWN, LESS, CLASSES, HIGH, BATCH, DECAY, FROZEN = 6, 12, 3, 5, 12, 5, 0.01, 1


class Inverted(torch.nn.Module):
    """Grows, goes over each channel by itself, is gated, and shrinks without an activation."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.grow, self.bn1 = torch.nn.Conv2d(WIDTH, GROWN, 1, bias=False), torch.nn.BatchNorm2d(GROWN, 1e-3, 0.3)
        self.depth = torch.nn.Conv2d(GROWN, GROWN, kernel, stride, kernel // 2, groups=GROWN, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(GROWN, 1e-3, 0.3)
        self.squeeze, self.excite = torch.nn.Conv2d(GROWN, LESS, 1), torch.nn.Conv2d(LESS, GROWN, 1)
        self.shrink, self.bn3 = torch.nn.Conv2d(GROWN, WIDTH, 1, bias=False), torch.nn.BatchNorm2d(WIDTH, 1e-3, 0.3)

    def forward(self, x):
        h = F.silu(self.bn1(self.grow(x)))  # @grow @bn1 @act1
        h = F.silu(self.bn2(self.depth(h)))  # @depth @bn2 @act2
        gate = F.adaptive_avg_pool2d(h, 1)  # @pool
        gate = self.excite(F.silu(self.squeeze(gate))).sigmoid()  # @squeeze @gate
        h = self.bn3(self.shrink(h * gate))  # @gated @shrink @bn3
        return h if self.stride > 1 else x + h  # @add


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = torch.nn.Conv2d(3, WIDTH, 3, 2, 1, bias=False), torch.nn.BatchNorm2d(WIDTH, 1e-3, 0.3)
        self.blocks = torch.nn.Sequential(Inverted(3, 1), Inverted(5, 2), Inverted(5, 1))
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        h = F.silu(self.bn(self.stem(x)))  # @stem @bn @act
        h = self.blocks(h)
        return self.head(h.mean((2, 3)))  # @head_pool @head


def compute_reference_loss(network, x, labels, step):
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.train(step < FROZEN)
    loss = F.cross_entropy(network(x), labels, label_smoothing=0.1)  # @goal @loss
    decayed = [one for one in network.parameters() if one.ndim > 1]
    return loss + 0.5 * DECAY * sum((one**2).sum() for one in decayed)  # @squares @decay


class Moving(nn.Cell):
    """A batch norm as its formula: statistics of the batch at first, then those that were kept."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.beta = (ms.Parameter(ops.zeros((width,)), name=name) for name in ("gamma", "beta"))
        self.moving_mean = ms.Parameter(ops.zeros((width,)), name="moving_mean", requires_grad=False)
        self.moving_variance = ms.Parameter(ops.ones((width,)), name="moving_variance", requires_grad=False)

    def construct(self, x):
        if self.training:
            count = x.size // x.shape[1]
            mean = x.mean((0, 2, 3))  # @bn @bn1 @bn3
            variance = ops.square(x - mean.reshape(1, -1, 1, 1)).mean((0, 2, 3))  # @bn @bn1 @bn3
            unbiased = variance * (count / (count - 1))  # @unbiased
            ops.assign(self.moving_mean, 0.7 * self.moving_mean + 0.3 * mean)  # @kept_mean
            ops.assign(self.moving_variance, 0.7 * self.moving_variance + 0.3 * unbiased)  # @kept
        else:
            mean, variance = self.moving_mean, self.moving_variance  # @used
        factor = self.gamma * ops.rsqrt(variance + 1e-3)  # @bn @bn1 @bn3 @factor
        offset = self.beta - mean * factor  # @bn @bn1 @bn3 @offset
        return x * factor.reshape(-1, 1, 1) + offset.reshape(-1, 1, 1)  # @bn @bn1 @bn3


class Layer(nn.Cell):
    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        half = kernel // 2
        self.grow, self.bn1 = nn.Conv2d(WIDTH, GROWN, 1), Moving(GROWN)
        self.depth = nn.Conv2d(GROWN, GROWN, kernel, stride, "pad", half, group=GROWN)  # @depth_made
        self.bn2 = nn.BatchNorm2d(GROWN, eps=1e-3, momentum=0.7)  # @made2
        self.squeeze, self.excite = nn.Dense(GROWN, LESS), nn.Dense(LESS, GROWN)
        self.shrink, self.bn3 = nn.Conv2d(GROWN, WIDTH, 1), Moving(WIDTH)
        self.is_added = stride == 1

    def construct(self, x):
        h = self.bn1(self.grow(x))  # @grow
        h = h * ops.sigmoid(h)  # @act1
        h = ops.silu(self.bn2(self.depth(h)))  # @depth @bn2 @act2
        gate = h.mean((2, 3))  # @pool
        gate = ops.sigmoid(self.excite(ops.silu(self.squeeze(gate))))  # @squeeze @gate
        h = h * gate.reshape(len(x), GROWN, 1, 1)  # @gated
        h = self.bn3(self.shrink(h))  # @shrink
        if self.is_added:
            h = h + x  # @add
        return h


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, WIDTH, 3, 2, "pad", 1), Moving(WIDTH)  # @stem_made
        self.blocks = nn.SequentialCell(Layer(3, 1), Layer(5, 2), Layer(5, 1))
        self.head = nn.Dense(WIDTH, CLASSES)

    def construct(self, x):
        h = self.bn(self.stem(x))  # @stem
        h = h * ops.sigmoid(h)  # @act
        h = self.blocks(h)
        return self.head(h.mean((2, 3)))  # @head_pool @head


def compute_candidate_loss(network, x, labels, step):
    for _, cell in network.cells_and_names():
        if isinstance(cell, (Moving, nn.BatchNorm2d)):
            cell.set_train(step < FROZEN)  # @frozen
    chance = ops.log_softmax(network(x), -1)
    goal = ops.one_hot(labels, CLASSES, ms.Tensor(0.9 + 0.1 / CLASSES), ms.Tensor(0.1 / CLASSES))  # @goal
    loss = -(goal * chance).sum() / len(x)  # @loss
    squares = 0.0
    for one in network.trainable_params():
        if not one.name.endswith(("gamma", "beta", "bias")):  # @decayed
            squares = squares + (one * one).sum()  # @squares
    return loss + DECAY / 2 * squares  # @decay


def convert(weights: Weights) -> Weights:
    words = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
    converted = {}
    for name, array in weights.items():
        path, _, word = name.rpartition(".")
        if path.rpartition(".")[2].startswith("bn"):
            converted[f"{path}.{words[word]}"] = array
        else:
            is_flat = name.endswith(("squeeze.weight", "excite.weight"))
            converted[name] = array[:, :, 0, 0] if is_flat else array
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(5300 + step)
    x = random.normal(size=(BATCH, 3, HIGH, HIGH)) * random.uniform(0.5, 2, size=(1, 3, 1, 1)) + 0.3
    return x.astype(np.float32), random.integers(CLASSES, size=BATCH)


FAULTS = (
    Fault("momentum as PyTorch counts it", "bn2", "momentum=0.7", "momentum=0.3", edit="made2", steps=2, first_step=1),
    Fault("epsilon of the library", "bn2", "eps=1e-3", "eps=1e-5", edit="made2"),
    Fault(
        "kept variance is biased",
        "unbiased kept factor bn bn1 bn3",
        "count / (count - 1)",
        "1",
        edit="unbiased",
        steps=2,
        first_step=1,
    ),
    Fault(
        "mean not kept",
        "kept_mean offset bn bn1 bn3",
        "ops.assign(self.moving_mean, 0.7 * self.moving_mean + 0.3 * mean)",
        "pass",
        edit="kept_mean",
        steps=2,
        first_step=1,
    ),
    Fault(
        "norms not frozen in time",
        "bn bn1 bn2 bn3",
        "step < FROZEN",
        "step <= FROZEN",
        edit="frozen",
        steps=2,
        first_step=1,
    ),
    Fault("same padding with a stride", "stem", '"pad", 1', '"same", 0', edit="stem_made"),
    Fault("relu in the gate", "squeeze", "ops.silu(self.squeeze(gate))", "ops.relu(self.squeeze(gate))"),
    Fault(
        "gate laid over the wrong axes",
        "gated",
        "gate.reshape(len(x), GROWN, 1, 1)",
        "gate.T.reshape(len(x), GROWN, 1, 1)",
    ),
    Fault("norms and biases decay too", "squares decay", '("gamma", "beta", "bias")', '("none",)', edit="decayed"),
    Fault("decay not halved", "decay", "DECAY / 2 * squares", "DECAY * squares"),
    Fault(
        "mean of the batch passes no gradient",
        "bn bn1 bn3 offset",
        "self.beta - mean * factor",
        "self.beta - ops.stop_gradient(mean) * factor",
        edit="offset",
        is_backward=True,
    ),
    Fault(
        "reference smooths nothing", "goal", "label_smoothing=0.1", "label_smoothing=0.0", edit="loss", side="reference"
    ),
    Fault("no residual in the reference", "add grow", "h if self.stride > 1 else x + h", "h", side="reference"),
    Fault(
        "activation after the shrinking, and labels smoothed too much",
        "add",
        "h = h + x",
        "h = ops.silu(h) + x",
        second=("goal", "0.9 + 0.1 / CLASSES", "0.8 + 0.1 / CLASSES"),
    ),
)
