"""A radiance field: encoded positions, a skip in the middle, and colours summed along a ray."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

RAYS, SAMPLES, OCTAVES, WIDTH = 4, 7, 3, 16
CODE = 3 + 6 * OCTAVES


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(CODE, WIDTH)
        self.second = torch.nn.Linear(WIDTH + CODE, WIDTH)
        self.density, self.colour = torch.nn.Linear(WIDTH, 1), torch.nn.Linear(WIDTH, 3)

    def encode(self, x):
        parts = [x]
        for octave in range(OCTAVES):
            angle = x * (2.0**octave * math.pi)  # @angle
            parts += [torch.sin(angle), torch.cos(angle)]  # @waves
        return torch.cat(parts, dim=-1)  # @code

    def forward(self, x):
        code = self.encode(x)
        h = F.relu(self.first(code))  # @first
        h = F.relu(self.second(torch.cat([h, code], dim=-1)))  # @skip
        return F.softplus(self.density(h)).squeeze(-1), torch.sigmoid(self.colour(h))  # @density @colour


def compute_reference_loss(network, x, distance, wanted):
    density, colour = network(x)
    alpha = 1 - torch.exp(-density * distance)  # @alpha
    passed = torch.cumprod(1 - alpha, dim=-1)  # @through
    through = torch.cat([torch.ones_like(passed[:, :1]), passed[:, :-1]], dim=-1)  # @through
    seen = ((alpha * through).unsqueeze(-1) * colour).sum(dim=1)  # @seen
    return F.mse_loss(seen, wanted)  # @loss


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(CODE, WIDTH)
        self.second = nn.Dense(WIDTH + CODE, WIDTH)
        self.head = nn.Dense(WIDTH, 4)

    def encode(self, x: Tensor) -> Tensor:
        scales = Tensor(np.array([2.0**octave * math.pi for octave in range(OCTAVES)], np.float32))  # @scales
        angles = x.expand_dims(-2) * scales.reshape(-1, 1)  # @angle
        waves = ops.stack((ops.sin(angles), ops.cos(angles)), axis=-2)  # @waves
        return ops.concat((x, waves.reshape(x.shape[0], x.shape[1], -1)), -1)  # @code

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encode(x)
        h = ops.relu(self.first(code))  # @first
        h = mint.nn.functional.relu(self.second(mint.cat((h, code), -1)))  # @skip
        out = self.head(h)  # @density @colour
        density = ops.softplus(out[..., 0])  # @density
        return density, ops.sigmoid(out[..., 1:])  # @colour


def compute_candidate_loss(network, x, distance, wanted):
    density, colour = network(x)
    depth = density * distance  # @alpha
    alpha = 1 - ops.exp(-depth)  # @alpha
    through = ops.exp(-(ops.cumsum(depth, -1) - depth))  # @through
    seen = ops.reduce_sum(mint.mul(alpha, through).expand_dims(-1) * colour, 1)  # @seen
    return ops.square(seen - wanted).mean()  # @loss


def convert(weights: Weights) -> Weights:
    converted = {name: array for name, array in weights.items() if name.partition(".")[0] in ("first", "second")}
    for word in ("weight", "bias"):
        converted[f"head.{word}"] = np.concatenate([weights[f"density.{word}"], weights[f"colour.{word}"]])
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(500 + step)
    x = random.uniform(-1, 1, size=(RAYS, SAMPLES, 3))
    distance, wanted = random.uniform(0.1, 0.4, size=(RAYS, SAMPLES)), random.uniform(size=(RAYS, 3))
    return x.astype(np.float32), distance.astype(np.float32), wanted.astype(np.float32)


FAULTS = (
    Fault("missing pi", "angle scales", "2.0**octave * math.pi", "2.0**octave", edit="scales"),
    Fault("cosine before sine", "waves", "(ops.sin(angles), ops.cos(angles))", "(ops.cos(angles), ops.sin(angles))"),
    Fault("light lost at the sample itself", "through", "ops.cumsum(depth, -1) - depth", "ops.cumsum(depth, -1)"),
    Fault("skip before what it skips", "skip", "(h, code)", "(code, h)"),
    Fault("relu for softplus", "density", "ops.softplus(", "ops.relu("),
    Fault("samples in reverse", "seen", "colour, 1)", "ops.flip(colour, (1,)), 1)"),
    Fault(
        "transmittance detached",
        "seen through",
        "mint.mul(alpha, through)",
        "mint.mul(alpha, ops.stop_gradient(through))",
        is_backward=True,
    ),
    Fault("distances forgotten", "alpha", "density * distance", "density"),
    Fault("first sample forgotten in the reference", "through", "passed[:, :-1]", "passed[:, 1:]", side="reference"),
)
