"""Learned latents that read a long input by cross attention: fused attention and norms against their formulas."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

INPUT, WIDTH, HEADS, LATENTS, CLASSES = 10, 16, 4, 5, 6


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.latents = torch.nn.Parameter(torch.zeros(LATENTS, WIDTH))
        self.norm_latent, self.norm_input = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(INPUT)
        self.query = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.key, self.value = torch.nn.Linear(INPUT, WIDTH), torch.nn.Linear(INPUT, WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.norm_mlp = torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def attend(self, latents, x):
        x = self.norm_input(x)  # @norm_input
        query = self.query(self.norm_latent(latents))  # @query
        key, value = self.key(x), self.value(x)  # @key
        query, key, value = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (query, key, value))  # @split
        mixed = F.scaled_dot_product_attention(query, key, value)  # @scale @softmax @mixed @key
        return self.out(mixed.transpose(1, 2).flatten(2))  # @out

    def forward(self, x):
        latents = self.latents.expand(len(x), -1, -1)
        latents = latents + self.attend(latents, x)  # @first
        h = F.gelu(self.up(self.norm_mlp(latents)))  # @gelu @norm_mlp
        latents = latents + self.down(h)  # @second
        return self.head(latents.mean(dim=1))  # @head


def compute_reference_loss(network, x, labels):
    return F.cross_entropy(network(x), labels)  # @loss


class Norm(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = Parameter(ops.ones((width,)), name="gamma")
        self.beta = Parameter(ops.zeros((width,)), name="beta")

    def construct(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keep_dims=True)
        centred = x - mean
        variance = mint.mean(mint.square(centred), dim=-1, keepdim=True)  # @variance
        return centred * ops.rsqrt(variance + 1e-5) * self.gamma + self.beta  # @normalize


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.latents = Parameter(ops.zeros((LATENTS, WIDTH)), name="latents")
        self.norm_latent, self.norm_input, self.norm_mlp = Norm(WIDTH), Norm(INPUT), Norm(WIDTH)
        self.query = nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.both = nn.Dense(INPUT, 2 * WIDTH)
        self.out = nn.Dense(WIDTH, WIDTH)
        self.up, self.down = mint.nn.Linear(WIDTH, 2 * WIDTH), mint.nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Dense(WIDTH, CLASSES)

    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[1], HEADS, -1).transpose(0, 2, 1, 3)  # @split

    def attend(self, latents: Tensor, x: Tensor) -> Tensor:
        x = self.norm_input(x)  # @norm_input
        query = self.split(self.query(self.norm_latent(latents)))  # @query
        key, value = mint.chunk(self.both(x), 2, dim=-1)  # @key
        key, value = self.split(key), self.split(value)
        scores = ops.matmul(query, key.swapaxes(-1, -2))
        scores = scores * (WIDTH // HEADS) ** -0.5  # @scale
        weights = ops.softmax(scores, axis=-1)  # @softmax
        mixed = mint.matmul(weights, value)  # @mixed
        return self.out(mixed.transpose(0, 2, 1, 3).reshape(x.shape[0], LATENTS, WIDTH))  # @out

    def construct(self, x: Tensor) -> Tensor:
        latents = ops.broadcast_to(self.latents, (x.shape[0], LATENTS, WIDTH))
        latents = latents + self.attend(latents, x)  # @first
        h = ops.gelu(self.up(self.norm_mlp(latents)), approximate="none")  # @gelu
        latents = latents + self.down(h)  # @second
        return self.head(ops.mean(latents, 1))  # @head


def compute_candidate_loss(network, x, labels):
    return ops.cross_entropy(network(x), labels)  # @loss


def convert(weights: Weights) -> Weights:
    converted = {}
    for name, array in weights.items():
        path, _, word = name.rpartition(".")
        if path.startswith("norm"):
            converted[f"{path}.{'gamma' if word == 'weight' else 'beta'}"] = array
        elif path not in ("key", "value"):
            converted[name] = array
    for word in ("weight", "bias"):
        converted[f"both.{word}"] = np.concatenate([weights[f"key.{word}"], weights[f"value.{word}"]])
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(300 + step)
    return random.normal(size=(3, 14, INPUT)).astype(np.float32), random.integers(CLASSES, size=3)


FAULTS = (
    Fault("missing scale", "scale softmax", "scores * (WIDTH // HEADS) ** -0.5", "scores"),
    Fault("softmax over the latents", "softmax", "axis=-1", "axis=-2"),
    Fault("key and value swapped", "key split", "key, value = mint", "value, key = mint"),
    Fault(
        "unbiased variance",
        "variance normalize norm_input",
        "mint.mean(mint.square(centred), dim=-1, keepdim=True)",
        "mint.sum(mint.square(centred), dim=-1, keepdim=True) / (x.shape[-1] - 1)",
    ),
    Fault("epsilon of the norm", "normalize norm_input", "1e-5", "1e-3"),
    Fault("tanh gelu", "gelu", '"none"', '"tanh"'),
    Fault("missing residual of the second part", "second head", "latents + self.down(h)", "self.down(h)"),
    Fault("heads not put together", "out", "mixed.transpose(0, 2, 1, 3).reshape", "mixed.reshape"),
    Fault(
        "a constant added to all scores",
        "softmax scale",
        "scores * (WIDTH // HEADS) ** -0.5",
        "scores * (WIDTH // HEADS) ** -0.5 + 1.0",
        edit="scale",
        has_effect=False,
    ),
)
