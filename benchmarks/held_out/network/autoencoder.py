"""A variational autoencoder whose noise is data; the heads of mean and log variance are one layer in the candidate."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

PIXELS, HIDDEN, LATENT = 20, 16, 6


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = torch.nn.Linear(PIXELS, HIDDEN)
        self.mean = torch.nn.Linear(HIDDEN, LATENT)
        self.log_variance = torch.nn.Linear(HIDDEN, LATENT)
        self.decode = torch.nn.Sequential(
            torch.nn.Linear(LATENT, HIDDEN), torch.nn.Softplus(), torch.nn.Linear(HIDDEN, PIXELS)
        )

    def forward(self, x, noise):
        h = torch.tanh(self.encode(x))  # @encode
        mean, log_variance = self.mean(h), self.log_variance(h)  # @heads
        deviation = torch.exp(0.5 * log_variance)  # @deviation
        z = mean + noise * deviation  # @sample
        return self.decode(z), mean, log_variance  # @decode


def compute_reference_loss(network, x, noise, step):
    logits, mean, log_variance = network(x, noise)
    likelihood = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / len(x)  # @likelihood
    inner = 1 + log_variance - mean.pow(2) - log_variance.exp()  # @inner
    divergence = -0.5 * inner.sum(dim=1).mean()  # @divergence
    weight = 0.5 if step < 2 else 1.0
    return likelihood + weight * divergence  # @loss


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Dense(PIXELS, HIDDEN, activation="tanh")  # @made
        self.heads = mint.nn.Linear(HIDDEN, 2 * LATENT)
        self.widen, self.paint = nn.Dense(LATENT, HIDDEN), nn.Dense(HIDDEN, PIXELS)

    def construct(self, x, noise):
        h = self.encode(x)  # @encode
        mean, log_variance = mint.chunk(self.heads(h), 2, dim=-1)  # @heads
        deviation = mint.exp(log_variance * 0.5)  # @deviation
        z = ops.add(mean, ops.mul(deviation, noise))  # @sample
        return self.paint(ops.softplus(self.widen(z))), mean, log_variance  # @decode


def compute_candidate_loss(network, x, noise, step):
    logits, mean, log_variance = network(x, noise)
    each = ops.maximum(logits, Tensor(0.0)) - logits * x + ops.log1p(ops.exp(-ops.abs(logits)))  # @likelihood
    likelihood = each.sum(axis=-1).mean()  # @likelihood
    inner = log_variance + 1 - ops.square(mean) - ops.exp(log_variance)  # @inner
    divergence = mint.mean(mint.sum(inner, dim=1)) * -0.5  # @divergence
    weight = 0.5 if step < 2 else 1.0  # @weight
    return likelihood + weight * divergence  # @loss


def convert(weights: Weights) -> Weights:
    converted = {}
    for word in ("weight", "bias"):
        for name, new in (("encode", "encode"), ("decode.0", "widen"), ("decode.2", "paint")):
            converted[f"{new}.{word}"] = weights[f"{name}.{word}"]
        converted[f"heads.{word}"] = np.concatenate([weights[f"mean.{word}"], weights[f"log_variance.{word}"]])
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(200 + step)
    return random.uniform(size=(8, PIXELS)).astype(np.float32), random.normal(size=(8, LATENT)).astype(np.float32)


FAULTS = (
    Fault("variance in the place of the deviation", "deviation", " * 0.5", ""),
    Fault("halves of the heads swapped", "heads deviation", "mean, log_variance =", "log_variance, mean ="),
    Fault("sigmoid for tanh", "encode", '"tanh"', '"sigmoid"', edit="made"),
    Fault("divergence of the wrong sign", "inner", "- ops.square(mean)", "+ ops.square(mean)"),
    Fault("divergence averaged over the latent", "divergence", "mint.sum(inner", "mint.mean(inner"),
    Fault("likelihood averaged over the pixels", "likelihood", ".sum(axis=-1)", ".mean(axis=-1)"),
    Fault(
        "deviation detached", "sample", "ops.mul(deviation", "ops.mul(ops.stop_gradient(deviation)", is_backward=True
    ),
    Fault("weight not raised in step 2", "loss", "step < 2", "step < 3", edit="weight", steps=3, first_step=2),
    Fault(
        "two at once: deviation and divergence",
        "deviation",
        " * 0.5",
        " * 0.25",
        second=("divergence", "-0.5", "-1.0"),
    ),
)
