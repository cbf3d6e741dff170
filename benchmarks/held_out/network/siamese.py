"""Embeddings of series with the hardest triplets of a batch, and centres of classes; the port measures by products."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

CHANNELS, WIDTH, TIME, OUT, CLASSES, MARGIN = 3, 8, 10, 6, 3, 0.3


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(CHANNELS, WIDTH, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm1d(WIDTH)
        self.wide = torch.nn.Conv1d(WIDTH, WIDTH, 3, padding=2, dilation=2)
        self.embed = torch.nn.Linear(2 * WIDTH, OUT)
        self.centres = torch.nn.Parameter(torch.zeros(CLASSES, OUT))

    def forward(self, x):
        h = F.elu(self.norm(self.conv(x)))  # @conv @norm @elu
        h = h + F.elu(self.wide(h))  # @wide
        pooled = torch.cat([h.mean(dim=2), h.std(dim=2, unbiased=False)], dim=1)  # @mean @deviation @pooled
        return F.normalize(self.embed(pooled), dim=1)  # @embed @unit


def compute_reference_loss(network, x, labels):
    z = network(x)
    distance = torch.cdist(z, z)  # @square @distance
    same = labels[:, None] == labels[None, :]
    other = ~torch.eye(len(z), dtype=torch.bool)
    far = distance.masked_fill(~(same & other), float("-inf")).amax(dim=1)  # @alike @far
    near = distance.masked_fill(same, float("inf")).amin(dim=1)  # @unlike @near
    triplet = F.softplus(far - near + MARGIN).mean()  # @gap @triplet
    centre = F.mse_loss(z, network.centres[labels], reduction="sum") / (2 * len(z))  # @chosen @centre
    spread = torch.pdist(network.centres).clamp(max=1.0).mean()  # @apart @spread
    return triplet + 0.2 * centre - 0.1 * spread  # @loss


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(CHANNELS, WIDTH, 3, pad_mode="same")
        self.norm = nn.BatchNorm2d(WIDTH, eps=1e-5, momentum=0.9)  # @made
        self.wide = nn.Conv1d(WIDTH, WIDTH, 3, pad_mode="pad", padding=2, dilation=2, has_bias=True)
        self.embed = nn.Dense(2 * WIDTH, OUT)
        self.centres = Parameter(ops.zeros((CLASSES, OUT)), name="centres")
        self.pairs = Tensor([[0, 0, 1], [1, 2, 2]])

    def construct(self, x):
        h = ops.elu(self.norm(self.conv(x).expand_dims(2)).squeeze(2))  # @conv @norm @elu
        h = h + ops.elu(self.wide(h))  # @wide
        mean = ops.mean(h, 2)  # @mean
        square = ops.square(h - mean.expand_dims(2)).mean(2)  # @deviation
        pooled = ops.cat((mean, ops.sqrt(square)), axis=1)  # @deviation @pooled
        y = self.embed(pooled)  # @embed
        return y * ops.rsqrt(ops.square(y).sum(1, keepdims=True))  # @unit


def compute_candidate_loss(network, x, labels):
    z = network(x)
    square = 2 - 2 * ops.matmul(z, z.T)  # @square
    same = (labels.expand_dims(1) == labels.expand_dims(0)).astype(z.dtype)
    itself = ops.eye(len(z), len(z), z.dtype)
    distance = ops.sqrt(ops.relu(square) + itself)  # @distance
    far = (distance - (1 - same + itself) * 1e4).max(axis=1)  # @alike @far
    near = (distance + same * 1e4).min(axis=1)  # @unlike @near
    triplet = ops.softplus(far - near + MARGIN).mean()  # @gap @triplet
    chosen = mint.matmul(ops.one_hot(labels, CLASSES).astype(z.dtype), network.centres)  # @chosen
    centre = ops.square(z - chosen).sum(1).mean() / 2  # @centre
    one, two = (ops.gather(network.centres, network.pairs[number], 0) for number in (0, 1))
    apart = one - two  # @apart
    spread = ops.minimum(ops.sqrt(ops.square(apart).sum(1)), Tensor(1.0)).mean()  # @apart @spread
    return triplet + 0.2 * centre - 0.1 * spread  # @loss


def convert(weights: Weights) -> Weights:
    converted = {name: array for name, array in weights.items() if not name.startswith(("norm", "conv", "wide.w"))}
    converted |= {"norm.gamma": weights["norm.weight"], "norm.beta": weights["norm.bias"]}
    converted |= {f"{name}.weight": weights[f"{name}.weight"][:, :, None] for name in ("conv", "wide")}
    converted["norm.moving_mean"] = weights["norm.running_mean"]
    converted["norm.moving_variance"] = weights["norm.running_var"]
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(3600 + step)
    return random.normal(size=(7, CHANNELS, TIME)).astype(np.float32), np.array([0, 1, 2, 1, 0, 2, 1])


FAULTS = (
    Fault("epsilon of the batch norm", "norm", "eps=1e-5", "eps=1e-2", edit="made"),
    Fault("deviation of a sample", "deviation", "expand_dims(2)).mean(2)", "expand_dims(2)).sum(2) / (TIME - 1)"),
    Fault(
        "easiest positive instead of the hardest",
        "far gap",
        "(distance - (1 - same + itself) * 1e4).max(axis=1)",
        "(distance + (1 - same + itself) * 1e4).min(axis=1)",
    ),
    Fault(
        "centres learn alone",
        "centre",
        "ops.square(z - chosen)",
        "ops.square(ops.stop_gradient(z) - chosen)",
        is_backward=True,
    ),
    Fault("length over the batch in the reference", "unit", "dim=1)", "dim=0)", edit="unit", side="reference"),
    Fault(
        "root of the distance forgotten, and the centre halved once more",
        "distance alike unlike far near",
        "ops.sqrt(ops.relu(square) + itself)",
        "ops.relu(square)",
        second=("centre", "/ 2", "/ 4"),
    ),
)
