"""Causal dilated convolutions with gates and weight norms over a companded wave, and the bins of its next values."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, dtype, mint, nn, ops
from torch.nn.utils.parametrizations import weight_norm

from held_out.fault import Fault
from held_out.weight import Weights

WIDTH, SKIP, MU, TIME, DILATIONS = 6, 8, 15, 24, (1, 2, 4)


def compand(wave: torch.Tensor) -> torch.Tensor:
    return wave.sign() * torch.log1p(MU * wave.abs()) / math.log1p(MU)  # @compand


def expand(level: torch.Tensor) -> torch.Tensor:
    return level.sign() * ((1 + MU) ** level.abs() - 1) / MU  # @expand


class Layer(torch.nn.Module):
    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.filter = weight_norm(torch.nn.Conv1d(WIDTH, WIDTH, 2, dilation=dilation))
        self.gate = weight_norm(torch.nn.Conv1d(WIDTH, WIDTH, 2, dilation=dilation))
        self.residual = torch.nn.Conv1d(WIDTH, WIDTH, 1)
        self.skip = torch.nn.Conv1d(WIDTH, SKIP, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = F.pad(x, (self.dilation, 0))  # @pad
        value = torch.tanh(self.filter(before))  # @length @weight @conv @halves
        gate = torch.sigmoid(self.gate(before))  # @length @weight @conv @halves
        h = value * gate  # @gated
        return (x + self.residual(h)) * math.sqrt(0.5), self.skip(h)  # @ends @residual


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start = torch.nn.Conv1d(1, WIDTH, 1)
        self.layers = torch.nn.ModuleList([Layer(dilation) for dilation in DILATIONS])
        self.last1, self.last2 = torch.nn.Conv1d(SKIP, SKIP, 1), torch.nn.Conv1d(SKIP, MU + 1, 1)

    def forward(self, level: torch.Tensor) -> torch.Tensor:
        x, skips = self.start(level.unsqueeze(1)), []  # @start
        for layer in self.layers:
            x, skip = layer(x)
            skips.append(skip)
        total = sum(skips) / math.sqrt(len(skips))  # @total
        return self.last2(F.relu(self.last1(F.relu(total))))  # @last1 @last2


def compute_reference_loss(network, wave):
    level = compand(wave)
    logits = network(level[:, :-1])
    bins = torch.floor((level[:, 1:] + 1) / 2 * MU + 0.5).long()  # @bins
    entropy = F.cross_entropy(logits, bins)  # @entropy
    centers = expand(torch.linspace(-1, 1, MU + 1))  # @centers
    expected = torch.einsum("bct,c->bt", logits.softmax(dim=1), centers)  # @expected
    return entropy + 0.5 * F.l1_loss(expected, wave[:, 1:])  # @distance @loss


class CausalConv(nn.Cell):
    """Both halves of a gate by one convolution, padded at both ends and cut at the second one."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.direction = Parameter(ops.ones((2 * WIDTH, WIDTH, 2)), name="direction")
        self.length = Parameter(ops.ones((2 * WIDTH, 1, 1)), name="length")
        self.bias = Parameter(ops.zeros((2 * WIDTH,)), name="bias")

    def construct(self, x: Tensor) -> Tensor:
        length = ops.sqrt(ops.square(self.direction).sum((1, 2), keepdims=True))  # @length
        weight = self.length * (self.direction / length)  # @weight
        d = self.dilation
        y = ops.conv1d(x, weight, self.bias, pad_mode="pad", padding=d, dilation=d)  # @conv @pad
        return y[:, :, : x.shape[-1]]  # @pad


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Dense(1, WIDTH)
        self.convs = nn.CellList([CausalConv(dilation) for dilation in DILATIONS])
        self.ends = nn.CellList([nn.Conv1d(WIDTH, WIDTH + SKIP, 1, has_bias=True) for _ in DILATIONS])
        self.last = nn.SequentialCell(
            nn.ReLU(), nn.Conv1d(SKIP, SKIP, 1, has_bias=True), nn.ReLU(), nn.Conv1d(SKIP, MU + 1, 1, has_bias=True)
        )

    def construct(self, level: Tensor) -> Tensor:
        x = self.start(level.expand_dims(-1)).swapaxes(1, 2)  # @start
        total = ops.zeros((x.shape[0], SKIP, x.shape[-1]), x.dtype)
        for conv, end in zip(self.convs, self.ends, strict=True):
            value, gate = mint.chunk(conv(x), 2, dim=1)  # @halves
            h = mint.tanh(value) * mint.sigmoid(gate)  # @halves @gated
            residual, skip = mint.split(end(h), [WIDTH, SKIP], dim=1)  # @ends
            x = ops.add(x, residual) * 0.5**0.5  # @residual
            total = total + skip  # @total
        return self.last(total / len(DILATIONS) ** 0.5)  # @total @last1 @last2


def compute_candidate_loss(network, wave):
    level = ops.sign(wave) * ops.log1p(ops.abs(wave) * MU) / math.log1p(MU)  # @compand
    logits = network(level[:, :-1]).swapaxes(1, 2)
    bins = ops.floor((level[:, 1:] + 1) * (MU / 2) + 0.5).astype(dtype.int32)  # @bins
    entropy = ops.cross_entropy(logits.reshape(-1, MU + 1), bins.reshape(-1))  # @entropy
    steps = np.linspace(-1, 1, MU + 1)
    centers = np.sign(steps) * np.expm1(np.abs(steps) * np.log1p(MU)) / MU  # @table
    expected = (ops.softmax(logits, -1) * Tensor(centers, dtype.float32)).sum(-1)  # @expected
    distance = ops.abs(expected - wave[:, 1:]).mean()  # @distance
    return entropy + distance * 0.5  # @loss


def convert(weights: Weights) -> Weights:
    converted = {"start.weight": weights["start.weight"][:, :, 0], "start.bias": weights["start.bias"]}
    for number in range(len(DILATIONS)):
        layer = f"layers.{number}"
        for new, old in {
            "direction": "parametrizations.weight.original1",
            "length": "parametrizations.weight.original0",
            "bias": "bias",
        }.items():
            both = [weights[f"{layer}.{part}.{old}"] for part in ("filter", "gate")]
            converted[f"convs.{number}.{new}"] = np.concatenate(both)
        for word in ("weight", "bias"):
            both = [weights[f"{layer}.{part}.{word}"] for part in ("residual", "skip")]
            converted[f"ends.{number}.{word}"] = np.concatenate(both)
    for new, old in ((1, "last1"), (3, "last2")):
        converted |= {f"last.{new}.{word}": weights[f"{old}.{word}"] for word in ("weight", "bias")}
    return {k: v[:, :, None] if k.startswith(("ends", "last")) and v.ndim == 3 else v for k, v in converted.items()}


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(2600 + step)
    phase, pitch = random.uniform(0, 6, size=(2, 1)), random.uniform(0.2, 0.9, size=(2, 1))
    wave = 0.6 * np.sin(phase + pitch * np.arange(TIME + 1)) + 0.1 * random.normal(size=(2, TIME + 1))
    return (np.clip(wave, -1, 1).astype(np.float32),)


FAULTS = (
    Fault("dilation forgotten", "conv", ", dilation=d", ""),
    Fault("length of the whole weight", "length", "sum((1, 2), keepdims=True)", "sum()"),
    Fault("value and gate swapped", "halves", "value, gate = mint", "gate, value = mint"),
    Fault("bins truncated, not rounded", "bins", " + 0.5)", ")"),
    Fault(
        "length detached",
        "weight length",
        "self.direction / length",
        "self.direction / ops.stop_gradient(length)",
        is_backward=True,
    ),
    Fault(
        "bins evenly apart",
        "expected expand",
        "np.sign(steps) * np.expm1(np.abs(steps) * np.log1p(MU)) / MU",
        "steps",
        edit="table",
    ),
    Fault("padded at the end in the reference", "pad", "(self.dilation, 0)", "(0, self.dilation)", side="reference"),
)
