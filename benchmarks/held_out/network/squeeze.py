"""Residual blocks with squeeze and excitation; the excitation is a 1x1 convolution in one and a Dense in the other."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Tensor, nn, ops

from held_out.fault import Fault
from held_out.pair import rename
from held_out.weight import Weights

WIDTH, CLASSES = 8, 5


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = torch.nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), torch.nn.BatchNorm2d(WIDTH)
        self.conv2, self.bn2 = torch.nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), torch.nn.BatchNorm2d(WIDTH)
        self.squeeze, self.excite = torch.nn.Conv2d(WIDTH, 4, 1), torch.nn.Conv2d(4, WIDTH, 1)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))  # @bn1
        h = self.bn2(self.conv2(h))  # @bn2
        pooled = F.adaptive_avg_pool2d(h, 1)  # @pool
        hidden = F.relu(self.squeeze(pooled))  # @squeeze
        gate = torch.sigmoid(self.excite(hidden))  # @gate
        return F.relu(h * gate + x)  # @gated @residual


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, WIDTH, 3, stride=2, padding=1, bias=False)
        self.bn = torch.nn.BatchNorm2d(WIDTH)
        self.layers = torch.nn.Sequential(Block(), Block())
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        h = self.stem(x)  # @stem
        h = torch.relu(self.bn(h))  # @bn
        h = self.layers(h)
        return self.head(h.mean(dim=(2, 3)))  # @head


def compute_reference_loss(network, x, labels):
    return F.cross_entropy(network(x), labels, label_smoothing=0.1)  # @loss


class CandidateBlock(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(WIDTH, WIDTH, 3, pad_mode="pad", padding=1)
        self.bn1 = nn.BatchNorm2d(WIDTH, momentum=0.9)  # @made1
        self.conv2 = nn.Conv2d(WIDTH, WIDTH, 3, pad_mode="same")
        self.bn2 = nn.BatchNorm2d(WIDTH)  # @made2
        self.squeeze = nn.Dense(WIDTH, 4, activation="relu")
        self.excite = nn.Dense(4, WIDTH)

    def construct(self, x: Tensor) -> Tensor:
        h = ops.relu(self.bn1(self.conv1(x)))  # @bn1
        h = self.bn2(self.conv2(h))  # @bn2
        pooled = ops.mean(h, (2, 3))  # @pool
        hidden = self.squeeze(pooled)  # @squeeze
        gate = ops.sigmoid(self.excite(hidden))  # @gate
        gated = h * gate.expand_dims(-1).expand_dims(-1)  # @gated
        return ops.relu(gated + x)  # @residual


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, stride=2, pad_mode="pad", padding=1)  # @made
        self.bn = nn.BatchNorm2d(WIDTH)
        self.layers = nn.SequentialCell(CandidateBlock(), CandidateBlock())
        self.head = nn.Dense(WIDTH, CLASSES)

    def construct(self, x: Tensor) -> Tensor:
        h = self.stem(x)  # @stem
        h = ops.relu(self.bn(h))  # @bn
        h = self.layers(h)
        return self.head(h.mean(axis=(2, 3)))  # @head


def compute_candidate_loss(network, x, labels):
    return ops.cross_entropy(network(x), labels, label_smoothing=0.1)  # @loss


def convert(weights: Weights) -> Weights:
    renamed = rename(weights, norms=("bn",))
    flat = {name for name in renamed if name.endswith(("squeeze.weight", "excite.weight"))}
    return {name: array[:, :, 0, 0] if name in flat else array for name, array in renamed.items()}


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(700 + step)
    return random.normal(size=(4, 3, 12, 12)).astype(np.float32), random.integers(CLASSES, size=4)


FAULTS = (
    Fault("stride with same padding", "stem", 'pad_mode="pad", padding=1', 'pad_mode="same"', edit="made"),
    Fault("hard sigmoid", "gate", "ops.sigmoid(", "ops.hardsigmoid("),
    Fault("squeezed by the maximum", "pool", "ops.mean(h, (2, 3))", "ops.amax(h, (2, 3))"),
    Fault("residual after the relu", "residual", "ops.relu(gated + x)", "ops.relu(gated) + x"),
    Fault(
        "epsilon of the second norm", "bn2", "nn.BatchNorm2d(WIDTH)", "nn.BatchNorm2d(WIDTH, eps=1e-3)", edit="made2"
    ),
    Fault("label smoothing forgotten", "loss", ", label_smoothing=0.1", ""),
    Fault(
        "gate detached", "gated", "gate.expand_dims(-1)", "ops.stop_gradient(gate).expand_dims(-1)", is_backward=True
    ),
    Fault(
        "momentum as PyTorch counts it", "bn1", "momentum=0.9", "momentum=0.1", edit="made1", steps=2, has_effect=False
    ),
    Fault("label smoothing in the reference", "loss", "label_smoothing=0.1", "label_smoothing=0.0", side="reference"),
)
