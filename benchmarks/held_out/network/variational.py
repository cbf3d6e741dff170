"""A variational autoencoder with free bits and given noise; the port flattens with channels last and has two heads."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

WIDTH, SIDE, LATENT, FREE = 6, 8, 5, 0.1
HALF = SIDE // 2


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = torch.nn.Conv2d(2, WIDTH, 3, stride=2, padding=1)
        self.encode = torch.nn.Linear(WIDTH * HALF * HALF, 2 * LATENT)
        self.decode = torch.nn.Linear(LATENT, WIDTH * HALF * HALF)
        self.norm = torch.nn.GroupNorm(2, WIDTH)
        self.up = torch.nn.Conv2d(WIDTH, 2, 3, padding=1)

    def forward(self, images, noise):
        h = F.leaky_relu(self.down(images * 2 - 1), 0.2)  # @scaled @down @leaky
        mean, log_variance = self.encode(h.flatten(1)).chunk(2, dim=1)  # @flat @mean @variance
        z = mean + torch.exp(0.5 * log_variance) * noise  # @deviation @sample
        h = self.decode(z).view(-1, WIDTH, HALF, HALF)  # @decode @front
        h = F.silu(self.norm(h))  # @norm @active
        h = F.interpolate(h, scale_factor=2, mode="bilinear", align_corners=False)  # @larger
        return self.up(h), mean, log_variance  # @up


def compute_reference_loss(network, images, noise, step):
    logits, mean, log_variance = network(images, noise)
    entropy = F.binary_cross_entropy_with_logits(logits, images, reduction="none")  # @rebuilt
    rebuilt = entropy.sum(dim=(1, 2, 3)).mean()  # @pixels
    apart = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp())  # @apart
    apart = apart.mean(dim=0).clamp(min=FREE).sum()  # @free
    return rebuilt + min(1.0, (step + 1) / 4) * apart  # @loss


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(2, WIDTH, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.mean = nn.Dense(HALF * HALF * WIDTH, LATENT)
        self.variance = nn.Dense(HALF * HALF * WIDTH, LATENT)
        self.decode = nn.Dense(LATENT, HALF * HALF * WIDTH)
        self.norm = nn.GroupNorm(2, WIDTH, eps=1e-5)  # @made
        self.up = nn.Conv2d(WIDTH, 2, 3, pad_mode="same", has_bias=True)

    def construct(self, images, noise):
        h = ops.leaky_relu(self.down((images - 0.5) / 0.5), 0.2)  # @scaled @down @leaky
        h = h.transpose(0, 2, 3, 1).reshape(len(images), -1)  # @flat
        mean, log_variance = self.mean(h), self.variance(h)  # @mean @variance
        deviation = ops.exp(log_variance * 0.5)  # @deviation
        z = mean + ops.mul(deviation, noise)  # @sample
        h = self.decode(z).reshape(-1, HALF, HALF, WIDTH)  # @decode
        h = self.norm(ops.transpose(h, (0, 3, 1, 2)))  # @front @norm
        h = h * ops.sigmoid(h)  # @active
        h = ops.interpolate(h, size=(SIDE, SIDE), mode="bilinear", align_corners=False)  # @larger
        return self.up(h), mean, log_variance  # @up


def compute_candidate_loss(network, images, noise, step):
    logits, mean, log_variance = network(images, noise)
    entropy = ops.relu(logits) - logits * images + mint.log1p(ops.exp(-ops.abs(logits)))  # @rebuilt
    rebuilt = entropy.sum() / len(images)  # @pixels
    apart = (ops.square(mean) + ops.exp(log_variance) - log_variance - 1) * 0.5  # @apart
    apart = mint.clamp(apart.mean(0), min=FREE).sum()  # @free
    weight = min((step + 1) / 4, 1.0)  # @warmth
    return rebuilt + weight * apart  # @loss


def convert(weights: Weights) -> Weights:
    converted = {name: array for name, array in weights.items() if name.startswith(("down", "up"))}
    converted |= {"norm.gamma": weights["norm.weight"], "norm.beta": weights["norm.bias"]}
    flat = weights["encode.weight"].reshape(-1, WIDTH, HALF, HALF).transpose(0, 2, 3, 1).reshape(2 * LATENT, -1)
    for number, name in enumerate(("mean", "variance")):
        rows = slice(number * LATENT, (number + 1) * LATENT)
        converted[f"{name}.weight"], converted[f"{name}.bias"] = flat[rows], weights["encode.bias"][rows]
    decode = weights["decode.weight"].reshape(WIDTH, HALF, HALF, LATENT).transpose(1, 2, 0, 3)
    converted["decode.weight"] = decode.reshape(-1, LATENT)
    converted["decode.bias"] = weights["decode.bias"].reshape(WIDTH, HALF, HALF).transpose(1, 2, 0).reshape(-1)
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(3200 + step)
    images = random.uniform(0, 1, size=(4, 2, SIDE, SIDE)).astype(np.float32)
    return images, random.normal(size=(4, LATENT)).astype(np.float32)


FAULTS = (
    Fault("variance taken for the deviation", "deviation", "log_variance * 0.5", "log_variance"),
    Fault("corners aligned", "larger", "align_corners=False", "align_corners=True"),
    Fault(
        "free bits of each example",
        "free",
        "mint.clamp(apart.mean(0), min=FREE).sum()",
        "mint.clamp(apart, min=FREE).mean(0).sum()",
    ),
    Fault("mean detached in the sample", "sample", "z = mean +", "z = ops.stop_gradient(mean) +", is_backward=True),
    Fault("default slope in the reference", "leaky", "images * 2 - 1), 0.2)", "images * 2 - 1))", side="reference"),
    Fault(
        "warmth a step late",
        "loss",
        "(step + 1) / 4",
        "step / 4",
        edit="warmth",
    ),
    Fault(
        "images not centred, and the mean of the pixels",
        "scaled down",
        "(images - 0.5) / 0.5",
        "images",
        second=("pixels", "entropy.sum() / len(images)", "entropy.mean()"),
    ),
)
