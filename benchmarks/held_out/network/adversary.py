"""Two networks against each other in one step; weights are divided by their largest stretch, and frozen once."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

NOISE, WIDTH, SIDE, SLOPE = 5, 6, 8, 0.2
START = np.random.default_rng(41).normal(size=WIDTH).astype(np.float32)


class Spectral(torch.nn.Module):
    """A convolution whose weight is divided by its largest stretch, by one step of a power iteration."""

    def __init__(self, enter: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(WIDTH, enter, 3, 3))
        self.bias = torch.nn.Parameter(torch.zeros(WIDTH))
        self.left = torch.from_numpy(START / np.linalg.norm(START))

    def stretch(self):
        flat = self.weight.flatten(1)
        with torch.no_grad():
            right = F.normalize(flat.t() @ self.left, dim=0)  # @right
            self.left = F.normalize(flat @ right, dim=0)  # @left
        return self.weight / torch.dot(self.left, flat @ right)  # @sigma @divided

    def forward(self, x, weight, is_frozen):
        bias = self.bias
        if is_frozen:
            weight, bias = weight.detach(), bias.detach()  # @freeze
        return F.leaky_relu(F.conv2d(x, weight, bias, stride=2, padding=1), SLOPE)  # @conv @leaky


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.grow = torch.nn.Linear(NOISE, WIDTH * 16)
        self.norm = torch.nn.BatchNorm2d(WIDTH)
        self.paint = torch.nn.ConvTranspose2d(WIDTH, 1, 4, stride=2, padding=1)
        self.first, self.second = Spectral(1), Spectral(WIDTH)
        self.judge = torch.nn.Linear((WIDTH + 1) * 4, 1)

    def make(self, noise):
        h = F.relu(self.norm(self.grow(noise).view(-1, WIDTH, 4, 4)))  # @grow @norm
        return torch.tanh(self.paint(h))  # @paint

    def criticize(self, images, weights, is_frozen=False):
        h = self.second(self.first(images, weights[0], is_frozen), weights[1], is_frozen)
        spread = torch.sqrt(h.var(dim=0, unbiased=False) + 1e-6).mean()  # @variance @spread
        joined = torch.cat([h, spread.expand(len(h), 1, 2, 2)], dim=1).flatten(1)  # @joined
        weight, bias = self.judge.weight, self.judge.bias
        if is_frozen:
            weight, bias = weight.detach(), bias.detach()  # @freeze
        return F.linear(joined, weight, bias).squeeze(1), h  # @judge


def compute_reference_loss(network, images, noise):
    weights = network.first.stretch(), network.second.stretch()
    fake = network.make(noise)
    real_score, real = network.criticize(images, weights)
    fake_score, _ = network.criticize(fake.detach(), weights)  # @given
    critic = F.relu(1 - real_score).mean() + F.relu(1 + fake_score).mean()  # @hinge
    score, features = network.criticize(fake, weights, is_frozen=True)
    match = F.l1_loss(features.mean(dim=0), real.detach().mean(dim=0))  # @match
    return critic - score.mean() + 2.0 * match  # @loss


class Stretched(nn.Cell):
    def __init__(self, enter: int) -> None:
        super().__init__()
        self.weight = ms.Parameter(ops.zeros((WIDTH, enter * 9)), name="weight")
        self.bias = ms.Parameter(ops.zeros((WIDTH,)), name="bias")
        self.left = ms.Tensor(START / np.linalg.norm(START)).reshape(1, WIDTH)
        self.shape = (WIDTH, enter, 3, 3)

    def stretch(self):
        still = ops.stop_gradient(self.weight)
        right = ops.matmul(self.left, still)  # @right
        right = right / ops.sqrt(ops.square(right).sum())  # @right
        left = ops.matmul(right, still.T)  # @left
        left = left / ops.sqrt(ops.square(left).sum())  # @left
        self.left = left  # @kept
        sigma = (ops.matmul(left, self.weight) * right).sum()  # @sigma
        return (self.weight / sigma).reshape(self.shape)  # @divided

    def construct(self, x, weight, bias):
        h = ops.conv2d(x, weight, bias, stride=2, pad_mode="pad", padding=1)  # @conv
        return ops.leaky_relu(h, SLOPE)  # @leaky


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.grow = nn.Dense(NOISE, 16 * WIDTH)
        self.norm = nn.BatchNorm2d(WIDTH)
        self.paint = nn.Conv2dTranspose(WIDTH, 1, 4, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.first, self.second = Stretched(1), Stretched(WIDTH)
        self.judge_weight = ms.Parameter(ops.zeros((4, WIDTH + 1)), name="judge_weight")
        self.judge_bias = ms.Parameter(ops.zeros((1,)), name="judge_bias")

    def make(self, noise):
        h = self.grow(noise).reshape(-1, 4, 4, WIDTH).transpose(0, 3, 1, 2)  # @grow
        return ops.tanh(self.paint(ops.relu(self.norm(h))))  # @norm @paint

    def list_weights(self):
        weights = [self.first.stretch(), self.first.bias, self.second.stretch(), self.second.bias]
        return [*weights, self.judge_weight, self.judge_bias]

    def look(self, images, weights):
        return self.second(self.first(images, *weights[:2]), *weights[2:4])

    def score(self, h, weights):
        """Of one batch: how much its images differ is a channel of all of them."""
        spread = ops.sqrt(ops.square(h - h.mean(0)).mean(0) + 1e-6).mean()  # @variance @spread
        channels = h.reshape(len(h), WIDTH, 4).swapaxes(1, 2)
        joined = ops.cat((channels, ops.ones((len(h), 4, 1), h.dtype) * spread), axis=2)  # @joined
        return (joined * weights[4]).sum((1, 2)) + weights[5]  # @judge


def compute_candidate_loss(network, images, noise):
    weights = network.list_weights()
    fake = network.make(noise)
    both = network.look(ops.cat((images, ops.stop_gradient(fake)), axis=0), weights)  # @given
    real, given = mint.chunk(both, 2, dim=0)  # @parts
    missed = ops.relu(1 - network.score(real, weights)).mean()  # @hinge
    critic = missed + ops.relu(network.score(given, weights) + 1).mean()  # @hinge
    frozen = [ops.stop_gradient(weight) for weight in weights]  # @freeze
    features = network.look(fake, frozen)
    match = ops.abs(features.mean(0) - ops.stop_gradient(real).mean(0)).mean()  # @match
    return critic - network.score(features, frozen).mean() + match * 2  # @loss


def convert(weights: Weights) -> Weights:
    converted = {name: weights[name] for name in ("paint.weight", "paint.bias", "first.bias", "second.bias")}
    converted |= {f"{name}.weight": weights[f"{name}.weight"].reshape(WIDTH, -1) for name in ("first", "second")}
    grow = weights["grow.weight"].reshape(WIDTH, 4, 4, NOISE)
    converted["grow.weight"] = grow.transpose(1, 2, 0, 3).reshape(-1, NOISE)
    converted["grow.bias"] = weights["grow.bias"].reshape(WIDTH, 4, 4).transpose(1, 2, 0).reshape(-1)
    converted |= {"norm.gamma": weights["norm.weight"], "norm.beta": weights["norm.bias"]}
    converted["norm.moving_mean"] = weights["norm.running_mean"]
    converted["norm.moving_variance"] = weights["norm.running_var"]
    converted["judge_weight"] = weights["judge.weight"].reshape(WIDTH + 1, 4).T
    converted["judge_bias"] = weights["judge.bias"]
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(4000 + step)
    images = np.tanh(random.normal(size=(4, 1, SIDE, SIDE))).astype(np.float32)
    return images, random.normal(size=(4, NOISE)).astype(np.float32)


FAULTS = (
    Fault(
        "stretch of the weight detached",
        "sigma divided",
        "left, self.weight) * right",
        "left, still) * right",
        is_backward=True,
    ),
    Fault("fake images not detached", "given", "ops.stop_gradient(fake)", "fake", is_backward=True),
    Fault("critic not frozen", "freeze conv judge", "ops.stop_gradient(weight) for", "weight for", is_backward=True),
    Fault("variance of a sample", "variance spread", "h.mean(0)).mean(0)", "h.mean(0)).sum(0) / (len(h) - 1)"),
    Fault(
        "vector of the stretch not kept", "right", "self.left = left", "_ = left", edit="kept", steps=2, first_step=1
    ),
    Fault(
        "reference matches the whole batch",
        "match",
        "features.mean(dim=0), real.detach().mean(dim=0)",
        "features, real.detach()",
        side="reference",
    ),
    Fault(
        "default slope, and hinge from zero",
        "leaky",
        "ops.leaky_relu(h, SLOPE)",
        "ops.leaky_relu(h, 0.01)",
        second=("hinge", "network.score(given, weights) + 1", "network.score(given, weights)"),
    ),
)
