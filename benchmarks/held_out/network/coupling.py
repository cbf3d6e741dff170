"""A normalising flow of affine couplings, by masks in one and by slices in the other, and its exact likelihood."""

from __future__ import annotations

import math

import mindspore.numpy as mnp
import numpy as np
import torch
from mindspore import Parameter, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

SIZE, HIDDEN, LAYERS, MARGIN = 6, 16, 4, 0.05


class Logit(torch.nn.Module):
    """From the unit interval to the line, centred by the mean of earlier batches."""

    def __init__(self):
        super().__init__()
        self.register_buffer("moving_mean", torch.zeros(SIZE))

    def forward(self, u):
        p = MARGIN + (1 - 2 * MARGIN) * u  # @inside
        y = torch.logit(p)  # @logit
        volume = torch.nn.functional.softplus(y) + torch.nn.functional.softplus(-y)  # @slope
        volume = (volume + math.log(1 - 2 * MARGIN)).sum(dim=1)  # @start
        x = y - self.moving_mean  # @center
        self.moving_mean = self.moving_mean.lerp(y.detach().mean(dim=0), 0.3)  # @update
        return x, volume


class Coupling(torch.nn.Module):
    def __init__(self, parity):
        super().__init__()
        self.register_buffer("mask", (torch.arange(SIZE) % 2 == parity).float())
        self.bias, self.scale = torch.nn.Parameter(torch.zeros(SIZE)), torch.nn.Parameter(torch.ones(SIZE))
        self.net = torch.nn.Sequential(
            torch.nn.Linear(SIZE, HIDDEN), torch.nn.LeakyReLU(0.1), torch.nn.Linear(HIDDEN, 2 * SIZE)
        )

    def forward(self, x, volume):
        x = (x + self.bias) * self.scale  # @act
        volume = volume + self.scale.abs().log().sum()  # @act_volume
        gate, shift = self.net(x * self.mask).chunk(2, dim=1)  # @kept @net
        gate = torch.sigmoid(gate + 2) * (1 - self.mask) + self.mask  # @gate
        z = x * gate + shift * (1 - self.mask)  # @move @join
        return z, volume + gate.log().sum(dim=1)  # @volume


class Reference(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.logit = Logit()
        self.layers = torch.nn.ModuleList([Coupling(number % 2) for number in range(LAYERS)])

    def forward(self, u):
        z, volume = self.logit(u)
        for layer in self.layers:
            z, volume = layer(z, volume)
        return z, volume


def compute_reference_loss(network, u):
    z, volume = network(u)
    prior = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(dim=1)  # @prior
    return -(prior + volume).mean() / (SIZE * math.log(2))  # @loss


class CandidateLogit(nn.Cell):
    def __init__(self):
        super().__init__()
        self.moving_mean = Parameter(ops.zeros((SIZE,)), name="moving_mean", requires_grad=False)

    def construct(self, u):
        p = u * (1 - 2 * MARGIN) + MARGIN  # @inside
        above, below = ops.log(p), ops.log(1 - p)  # @logit @slope
        y = above - below  # @logit
        volume = SIZE * math.log(1 - 2 * MARGIN) - ops.reduce_sum(above + below, 1)  # @slope @start
        x = y - self.moving_mean  # @center
        mean = ops.stop_gradient(ops.reduce_mean(y, 0))  # @update
        ops.assign(self.moving_mean, 0.7 * self.moving_mean + 0.3 * mean)  # @update
        return x, volume


class Half(nn.Cell):
    """Moves every second number by what the others say."""

    def __init__(self, parity):
        super().__init__()
        self.parity = parity
        self.bias = Parameter(ops.zeros((SIZE,)), name="bias")
        self.scale = Parameter(ops.ones((SIZE,)), name="scale")
        self.enter = nn.Dense(SIZE // 2, HIDDEN, activation=nn.LeakyReLU(0.1))  # @made
        self.to_gate, self.to_shift = nn.Dense(HIDDEN, SIZE // 2), nn.Dense(HIDDEN, SIZE // 2)

    def construct(self, x):
        x = ops.mul(x + self.bias, self.scale)  # @act
        even, odd = x[:, 0::2], x[:, 1::2]
        kept, other = (even, odd) if self.parity == 0 else (odd, even)
        h = self.enter(kept)  # @kept @net
        gate = ops.sigmoid(self.to_gate(h) + 2)  # @net @gate
        moved = gate * other + self.to_shift(h)  # @net @move
        pair = (kept, moved) if self.parity == 0 else (moved, kept)  # @order
        joined = ops.stack(pair, -1).reshape(x.shape)  # @join
        volume = ops.reduce_sum(ops.log(gate), 1)  # @volume
        return joined, volume + ops.log(ops.abs(self.scale)).sum()  # @act_volume


class Candidate(nn.Cell):
    def __init__(self):
        super().__init__()
        self.logit = CandidateLogit()
        self.layers = nn.CellList([Half(number % 2) for number in range(LAYERS)])

    def construct(self, u):
        z, volume = self.logit(u)
        volumes = [volume]
        for layer in self.layers:
            z, volume = layer(z)
            volumes.append(volume)
        return z, mnp.sum(ops.stack(volumes), axis=0)  # @volumes


def compute_candidate_loss(network, u):
    z, volume = network(u)
    prior = -0.5 * (ops.square(z) + math.log(2 * math.pi)).sum(axis=1)  # @prior
    bits = ops.neg(prior + volume) / math.log(2)  # @loss
    return bits.mean() / SIZE  # @loss


def convert(weights: Weights) -> Weights:
    converted = {"logit.moving_mean": weights["logit.moving_mean"]}
    for number in range(LAYERS):
        kept, moved = slice(number % 2, None, 2), slice(1 - number % 2, None, 2)
        start = f"layers.{number}"
        converted |= {f"{start}.{word}": weights[f"{start}.{word}"] for word in ("bias", "scale")}
        converted[f"{start}.enter.weight"] = weights[f"{start}.net.0.weight"][:, kept]
        converted[f"{start}.enter.bias"] = weights[f"{start}.net.0.bias"]
        for word in ("weight", "bias"):
            gate, shift = np.split(weights[f"{start}.net.2.{word}"], 2)
            converted |= {f"{start}.to_gate.{word}": gate[moved], f"{start}.to_shift.{word}": shift[moved]}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(2300 + step)
    return (random.beta(2.0, 1.2, size=(8, SIZE)).astype(np.float32),)


FAULTS = (
    Fault("shifted before it is scaled", "move", "other + self.to_shift(h)", "(other + self.to_shift(h))"),
    Fault("halves joined the same way in each layer", "join", "(moved, kept)", "(kept, moved)", edit="order"),
    Fault("sign of the scale's volume", "act_volume", "volume + ops.log", "volume - ops.log"),
    Fault("constant of the prior not halved", "prior", "-0.5 * (ops.square(z) +", "-(0.5 * ops.square(z) +"),
    Fault("volume detached", "volume", "ops.log(gate)", "ops.log(ops.stop_gradient(gate))", is_backward=True),
    Fault("kept half shifted in the reference", "join", "shift * (1 - self.mask)", "shift", side="reference"),
    Fault("mean of what is centred", "update", "reduce_mean(y, 0)", "reduce_mean(x, 0)", steps=3, first_step=2),
)
