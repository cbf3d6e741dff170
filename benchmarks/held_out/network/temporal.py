"""Dilated causal convolutions over time, with weight normalization; a library's against a written one."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, mint, nn, ops
from torch.nn.utils.parametrizations import weight_norm

from held_out.fault import Fault
from held_out.weight import Weights

SERIES, WIDTH, KERNEL, TIME = 3, 8, 3, 16


class Block(torch.nn.Module):
    def __init__(self, inputs: int, dilation: int) -> None:
        super().__init__()
        self.left = (KERNEL - 1) * dilation
        self.conv = weight_norm(torch.nn.Conv1d(inputs, WIDTH, KERNEL, dilation=dilation))
        self.skip = torch.nn.Conv1d(inputs, WIDTH, 1) if inputs != WIDTH else torch.nn.Identity()

    def forward(self, x):
        padded = F.pad(x, (self.left, 0))  # @pad
        h = self.conv(padded)  # @conv @norm
        h = torch.relu(h)  # @relu
        return h + self.skip(x)  # @residual


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.Sequential(Block(SERIES, 1), Block(WIDTH, 2), Block(WIDTH, 4))
        self.head = torch.nn.Linear(WIDTH, SERIES)

    def forward(self, x):
        h = self.blocks(x)
        return self.head(h.transpose(1, 2))  # @head


def compute_reference_loss(network, x, wanted):
    return F.smooth_l1_loss(network(x), wanted)  # @loss


class CandidateBlock(nn.Cell):
    def __init__(self, inputs: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation  # @dilation
        self.left = (KERNEL - 1) * dilation  # @left
        self.size = Parameter(ops.ones((WIDTH, 1, 1)), name="size")
        self.direction = Parameter(ops.ones((WIDTH, inputs, KERNEL)), name="direction")
        self.bias = Parameter(ops.zeros((WIDTH,)), name="bias")
        self.skip = nn.Conv1d(inputs, WIDTH, 1, has_bias=True) if inputs != WIDTH else None

    def construct(self, x: Tensor) -> Tensor:
        norm = ops.sqrt(ops.square(self.direction).sum((1, 2), keepdims=True))  # @norm
        weight = self.direction * (self.size / norm)  # @norm
        padded = ops.pad(x, (self.left, 0))  # @pad
        h = ops.conv1d(padded, weight, self.bias, dilation=self.dilation)  # @conv
        h = mint.nn.functional.relu(h)  # @relu
        return h + (x if self.skip is None else self.skip(x))  # @residual


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.SequentialCell(CandidateBlock(SERIES, 1), CandidateBlock(WIDTH, 2), CandidateBlock(WIDTH, 4))
        self.head = nn.Dense(WIDTH, SERIES)

    def construct(self, x: Tensor) -> Tensor:
        h = self.blocks(x)
        return self.head(ops.swapaxes(h, 1, 2))  # @head


def compute_candidate_loss(network, x, wanted):
    return ops.smooth_l1_loss(network(x), wanted, beta=1.0, reduction="mean")  # @loss


def convert(weights: Weights) -> Weights:
    names = {"conv.parametrizations.weight.original0": "size", "conv.parametrizations.weight.original1": "direction"}
    converted = {}
    for name, array in weights.items():
        for word, new in (*names.items(), ("conv.bias", "bias")):
            name = name.replace(word, new)
        converted[name] = array[:, :, None, :] if name == "blocks.0.skip.weight" else array
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(600 + step)
    x = random.normal(size=(4, SERIES, TIME + 1)).cumsum(-1).astype(np.float32)
    return np.ascontiguousarray(x[..., :-1]), np.ascontiguousarray(x[..., 1:].swapaxes(1, 2))


FAULTS = (
    Fault("padded on the right", "pad", "(self.left, 0)", "(0, self.left)"),
    Fault("norm of the whole weight", "norm conv", "sum((1, 2), keepdims=True)", "sum()"),
    Fault("missing residual", "residual pad", "h + (x if self.skip is None else self.skip(x))", "h"),
    Fault("beta of the smooth loss", "loss", "beta=1.0", "beta=0.5"),
    Fault("tanh for relu", "relu", "mint.nn.functional.relu(h)", "ops.tanh(h)"),
    Fault("norm detached", "norm conv", "self.size / norm", "self.size / ops.stop_gradient(norm)", is_backward=True),
    Fault("same padding, not causal", "pad", "(self.left, 0)", "(self.left // 2, self.left - self.left // 2)"),
)
