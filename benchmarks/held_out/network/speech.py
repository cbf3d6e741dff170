"""Gated convolutions over energies of bands, and the sum over all alignments, fused or as a recursion."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

BINS, BANDS, WIDTH, TIME, FRAMES, WORDS, LENGTH = 10, 6, 8, 16, 8, 7, 3
LOWEST = -1e30
FILTERS = np.maximum(0, 1 - np.abs(np.linspace(0, 1, BINS)[:, None] - np.linspace(0, 1, BANDS)) * 4).astype(np.float32)


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = torch.nn.Conv1d(BANDS, 2 * WIDTH, 5, stride=2, padding=2)
        self.middle = torch.nn.Conv1d(WIDTH, 2 * WIDTH, 3, padding=1)
        self.norm = torch.nn.InstanceNorm1d(WIDTH, affine=True)
        self.head = torch.nn.Linear(WIDTH, WORDS)
        self.filters = torch.from_numpy(FILTERS)

    def forward(self, power):
        bands = torch.log(power @ self.filters + 1e-5)  # @bands
        bands = (bands - bands.mean(dim=1, keepdim=True)) / bands.std(dim=1, keepdim=True)  # @center @deviation @ratio
        x = F.glu(self.enter(bands.transpose(1, 2)), dim=1)  # @frames @enter @halves @gate
        y = F.glu(self.middle(self.norm(x)), dim=1)  # @norm @middle @inner
        x = x + y  # @residual
        return F.log_softmax(self.head(x.transpose(1, 2)), dim=-1)  # @head @chance


def compute_reference_loss(network, power, words, frames, lengths):
    chance = network(power).transpose(0, 1)
    return F.ctc_loss(chance, words, frames, lengths)  # @picked @start @skip @sum @hold @ends @average


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Dense(5 * BANDS, 2 * WIDTH)
        self.middle = nn.Conv1d(WIDTH, 2 * WIDTH, 3, pad_mode="pad", padding=1, has_bias=True)
        self.scale = ms.Parameter(ops.ones((WIDTH, 1)), name="scale")
        self.shift = ms.Parameter(ops.zeros((WIDTH, 1)), name="shift")
        self.head = nn.Dense(WIDTH, WORDS)
        self.filters = ms.Tensor(FILTERS)

    def normalize(self, x):
        x = x - x.mean(-1, keep_dims=True)  # @norm
        return x * ops.rsqrt(ops.square(x).mean(-1, keep_dims=True) + 1e-5) * self.scale + self.shift  # @norm

    def construct(self, power):
        bands = ops.log(ops.matmul(power, self.filters) + 1e-5)  # @bands
        bands = bands - ops.mean(bands, 1, True)  # @center
        deviation = ops.sqrt(ops.square(bands).sum(1, keepdims=True) / (TIME - 1))  # @deviation
        bands = ops.pad(bands / deviation, (0, 0, 2, 2))  # @ratio @padding
        frames = ops.stack([bands[:, n : n + TIME - 1 : 2] for n in range(5)], axis=2)  # @frames
        value, gate = mint.split(self.enter(frames.reshape(-1, FRAMES, 5 * BANDS)), WIDTH, dim=-1)  # @enter @halves
        x = (value * ops.sigmoid(gate)).swapaxes(1, 2)  # @gate
        value, gate = mint.chunk(self.middle(self.normalize(x)), 2, dim=1)  # @middle
        x = x + value * mint.sigmoid(gate)  # @inner @residual
        return ops.log_softmax(self.head(x.swapaxes(1, 2)))  # @head @chance


def sum_alignments(chance, words, frames, lengths):
    """Words with blanks around them: a state stays, goes on, or skips a blank between two words that differ."""
    count = len(words)
    states = ops.stack((ops.zeros_like(words), words), axis=2).reshape(count, -1)
    states = ops.cat((states, ops.zeros((count, 1), words.dtype)), axis=1)
    picked = ops.bmm(chance, ops.one_hot(states, WORDS).astype(chance.dtype).swapaxes(1, 2))  # @picked
    two = ops.cat((ops.zeros((count, 2), words.dtype), states[:, :-2]), axis=1)
    is_barred = ops.logical_or(states == 0, states == two).astype(chance.dtype)  # @barred
    places = ops.arange(2 * LENGTH + 1)
    total = picked[:, 0] + (places > 1).astype(chance.dtype) * LOWEST  # @start
    for time in range(1, FRAMES):
        before = ops.full((count, 2), LOWEST, dtype=chance.dtype)
        one = ops.cat((before[:, :1], total[:, :-1]), axis=1)
        skip = ops.cat((before, total[:, :-2]), axis=1) + is_barred * LOWEST  # @skip
        now = ops.logsumexp(ops.stack((total, one, skip), axis=2), 2) + picked[:, time]  # @sum
        total = ops.where((time < frames).expand_dims(1), now, total)  # @hold
    ends = ops.logical_or(places == 2 * lengths.expand_dims(1), places == 2 * lengths.expand_dims(1) - 1)
    return -ops.logsumexp(ops.where(ends, total, ops.full_like(total, LOWEST)), 1)  # @ends


def compute_candidate_loss(network, power, words, frames, lengths):
    losses = sum_alignments(network(power), words, frames, lengths)
    return (losses / lengths.astype(losses.dtype)).mean()  # @average


def convert(weights: Weights) -> Weights:
    converted = {name: weights[name] for name in ("enter.bias", "middle.bias", "head.weight", "head.bias")}
    converted["middle.weight"] = weights["middle.weight"][:, :, None]
    converted["enter.weight"] = weights["enter.weight"].transpose(0, 2, 1).reshape(2 * WIDTH, -1)
    converted["scale"] = weights["norm.weight"].reshape(WIDTH, 1)
    converted["shift"] = weights["norm.bias"].reshape(WIDTH, 1)
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(3100 + step)
    power = random.exponential(size=(3, TIME, BINS)).astype(np.float32)
    words = np.array([[2, 2, 5], [4, 1, 0], [3, 6, 6]])
    return power, words, np.array([8, 6, 7]), np.array([3, 2, 3])


FAULTS = (
    Fault("deviation of all instead of a sample", "deviation", "/ (TIME - 1)", "/ TIME"),
    Fault("halves of the gate swapped", "halves gate", "value, gate = mint.split", "gate, value = mint.split"),
    Fault(
        "blank skipped between equal words",
        "skip barred",
        "ops.logical_or(states == 0, states == two)",
        "(states == 0)",
        edit="barred",
    ),
    Fault("residual detached", "residual", "x = x + value", "x = ops.stop_gradient(x) + value", is_backward=True),
    Fault("larger epsilon in the reference", "bands", "+ 1e-5", "+ 1e-2", side="reference"),
    Fault(
        "frames padded at the end alone, and not averaged by length",
        "frames padding",
        "(0, 0, 2, 2)",
        "(0, 0, 0, 4)",
        edit="padding",
        second=("average", "losses / lengths.astype(losses.dtype)", "losses"),
    ),
)
