"""A neural differential equation by Runge and Kutta: energy as a part of the state in one, beside it in the other."""

from __future__ import annotations

from collections.abc import Callable

import mindspore
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

STATE, HIDDEN, WANTED, BATCH, STEPS = 4, 14, 2, 6, 2
LENGTH = 1.5 / STEPS


class Field(torch.nn.Module):
    """How a state changes at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(STATE + 1, HIDDEN)
        self.outer = torch.nn.Linear(HIDDEN, STATE)
        self.gate = torch.nn.Linear(1, STATE)

    def forward(self, time, x):
        times = x.new_full((len(x), 1), time)  # @time
        h = torch.tanh(self.inner(torch.cat([x, times], dim=-1)))  # @inner @time
        return self.outer(h) * torch.sigmoid(self.gate(times))  # @gate


def integrate(derive: Callable, y: torch.Tensor) -> torch.Tensor:
    for number in range(STEPS):
        time = number * LENGTH  # @clock
        first = derive(time, y)
        second = derive(time + LENGTH / 2, y + LENGTH / 2 * first)  # @second
        third = derive(time + LENGTH / 2, y + LENGTH / 2 * second)  # @third
        fourth = derive(time + LENGTH, y + LENGTH * third)  # @fourth
        y = y + LENGTH / 6 * (first + 2 * second + 2 * third + fourth)  # @combine @total
    return y


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.field = Field()
        self.head = torch.nn.Linear(STATE, WANTED)

    def derive(self, time, y):
        slope = self.field(time, y[:, :STATE])
        return torch.cat([slope, slope.pow(2).mean(dim=1, keepdim=True)], dim=1)  # @energy

    def forward(self, x):
        y = integrate(self.derive, F.pad(x, (0, 1)))
        return self.head(y[:, :STATE]), y[:, STATE]  # @head


def compute_reference_loss(network, x, wanted, step):
    found, energy = network(x)
    return F.mse_loss(found, wanted) + 0.2 * 0.5**step * energy.mean()  # @loss


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Parameter(ops.zeros((STATE, HIDDEN)), name="inner")
        self.inner_time = Parameter(ops.zeros((1, HIDDEN)), name="inner_time")
        self.inner_bias = Parameter(ops.zeros((HIDDEN,)), name="inner_bias")
        self.outer = nn.Dense(HIDDEN, STATE)
        self.gate = mint.nn.Linear(1, STATE)
        self.head = nn.Dense(STATE, WANTED)
        self.times = Tensor(np.arange(2 * STEPS + 1)[:, None] * LENGTH / 2, mindspore.float32)
        self.shares = Tensor(np.array([1, 2, 2, 1]).reshape(4, 1, 1) / 6, mindspore.float32)  # @shares

    def compute_slope(self, x: Tensor, shift: Tensor, gate: Tensor) -> Tensor:
        h = ops.tanh(ops.matmul(x, self.inner) + shift)  # @inner @time
        return self.outer(h) * gate  # @gate

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shifts = ops.matmul(self.times, self.inner_time) + self.inner_bias  # @shifts
        gates = ops.sigmoid(self.gate(self.times))  # @gate
        energy = ops.zeros((x.shape[0],), x.dtype)
        for number in range(STEPS):
            places = range(2 * number, 2 * number + 3)
            now, middle, end = ((shifts[place], gates[place]) for place in places)  # @clock
            first = self.compute_slope(x, *now)
            second = self.compute_slope(x + first * (LENGTH / 2), *middle)  # @second
            third = self.compute_slope(x + second * (LENGTH / 2), *middle)  # @third
            fourth = self.compute_slope(x + third * LENGTH, *end)  # @fourth
            slopes = ops.stack([first, second, third, fourth])
            x = x + ops.reduce_sum(slopes * self.shares, 0) * LENGTH  # @combine
            squares = ops.square(slopes).mean(-1, True)  # @energy
            energy = energy + ops.reduce_sum(squares * self.shares, 0).squeeze(-1) * LENGTH  # @total
        return self.head(x), energy  # @head


def compute_candidate_loss(network, x, wanted, step):
    found, energy = network(x)
    error = ops.square(found - wanted).mean()
    weight = 0.2 / 2**step  # @weight
    return error + weight * energy.mean()  # @loss


def convert(weights: Weights) -> Weights:
    converted = dict(weights)
    inner = converted.pop("field.inner.weight")
    converted["inner"], converted["inner_time"] = inner[:, :STATE].T, inner[:, STATE:].T
    converted["inner_bias"] = converted.pop("field.inner.bias")
    return {name.removeprefix("field."): array for name, array in converted.items()}


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(1900 + step)
    x = random.normal(size=(BATCH, STATE))
    wanted = np.stack([np.sin(x[:, 0]) * x[:, 1], x[:, 2] - x[:, 3]], axis=-1)
    return x.astype(np.float32), wanted.astype(np.float32)


FAULTS = (
    Fault(
        "shares of the rule of three eighths",
        "combine total",
        "[1, 2, 2, 1]).reshape(4, 1, 1) / 6",
        "[1, 3, 3, 1]).reshape(4, 1, 1) / 8",
        edit="shares",
    ),
    Fault("third slope from the first", "third", "x + second", "x + first"),
    Fault("last slope in the middle", "time", "*end)", "*middle)", edit="fourth"),
    Fault("energy summed over the state", "energy", ".mean(-1, True)", ".sum(-1, keepdims=True)"),
    Fault(
        "energy of detached slopes",
        "energy",
        "ops.square(slopes)",
        "ops.square(ops.stop_gradient(slopes))",
        is_backward=True,
    ),
    Fault(
        "weight halved a step late", "loss", "2**step", "2 ** max(step - 1, 0)", edit="weight", steps=2, first_step=1
    ),
    Fault(
        "reference a step ahead in time",
        "time clock",
        "number * LENGTH",
        "(number + 1) * LENGTH",
        edit="clock",
        side="reference",
    ),
)
