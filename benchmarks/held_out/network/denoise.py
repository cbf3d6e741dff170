"""A denoiser that its time modulates: learns the velocity, weighted by signal to noise; parts apart in the port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

CHANNELS, TOKENS, WIDTH, HEADS, HIDDEN, CLASSES, LAYERS = 3, 6, 12, 3, 20, 4, 2
SIZE, TIMES, LARGEST, OFFSET = WIDTH // HEADS, 40, 5.0, 0.008


def embed_time(t):
    half = WIDTH // 2
    frequencies = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32) / half)
    angles = t[:, None].float() * frequencies[None]  # @angles
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)  # @waves


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)  # @modulated


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = torch.nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-3)
        self.norm2 = torch.nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-3)
        self.modulation = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Linear(WIDTH, 6 * WIDTH))
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.enter, self.leave = torch.nn.Linear(WIDTH, HIDDEN), torch.nn.Linear(HIDDEN, WIDTH)

    def attend(self, x):
        parts = self.qkv(x).view(len(x), TOKENS, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)  # @query
        y = F.scaled_dot_product_attention(*parts.unbind(0), scale=SIZE**-0.5)  # @score @chance @context
        return self.out(y.transpose(1, 2).reshape(len(x), TOKENS, WIDTH))  # @out

    def forward(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(c).chunk(6, dim=-1)  # @active @six
        x = x + gate1.unsqueeze(1) * self.attend(modulate(self.norm1(x), shift1, scale1))  # @norm1 @first
        h = self.enter(modulate(self.norm2(x), shift2, scale2))  # @norm2 @enter
        return x + gate2.unsqueeze(1) * self.leave(F.gelu(h, approximate="tanh"))  # @gelu @leave @second


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = torch.nn.Linear(CHANNELS, WIDTH)
        self.places = torch.nn.Parameter(torch.zeros(1, TOKENS, WIDTH))
        self.time = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.SiLU(), torch.nn.Linear(WIDTH, WIDTH))
        self.labels = torch.nn.Embedding(CLASSES + 1, WIDTH)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = torch.nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-3)
        self.modulation = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, CHANNELS)

    def forward(self, x, t, labels, dropped):
        c = self.time(embed_time(t)) + self.labels(torch.where(dropped > 0, CLASSES, labels))  # @time @label @condition
        x = self.enter(x) + self.places  # @entered @placed
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.modulation(F.silu(c)).chunk(2, dim=-1)  # @last_active @two
        return self.out(modulate(self.norm(x), shift, scale))  # @norm @velocity


def compute_reference_loss(network, x, noise, t, labels, dropped):
    alpha = torch.cos((t / TIMES + OFFSET) / (1 + OFFSET) * math.pi / 2).view(-1, 1, 1)  # @alpha
    sigma = torch.sqrt(1 - alpha**2)  # @sigma
    found = network(alpha * x + sigma * noise, t, labels, dropped)  # @noisy
    wanted = alpha * noise - sigma * x  # @wanted
    snr = (alpha / sigma).flatten() ** 2  # @snr
    weight = snr.clamp(max=LARGEST) / (snr + 1)  # @least @weight
    errors = F.mse_loss(found, wanted, reduction="none").mean(dim=(1, 2))  # @error @errors
    return (weight * errors).mean()  # @weighted @loss


class Norm(nn.Cell):
    def construct(self, x, shift, scale):
        away = x - x.mean(-1, keep_dims=True)  # @norm1 @norm2 @norm
        unit = away * ops.rsqrt((away * away).mean(-1, keep_dims=True) + 1e-3)  # @norm1 @norm2 @norm
        return unit + unit * scale.expand_dims(1) + shift.expand_dims(1)  # @modulated


class Layer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.six = ms.Parameter(ops.zeros((6, WIDTH, WIDTH)), name="six")
        self.six_bias = ms.Parameter(ops.zeros((6, 1, WIDTH)), name="six_bias")
        self.query, self.key, self.value = (nn.Dense(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Dense(WIDTH, WIDTH)
        self.enter, self.leave = nn.Dense(WIDTH, HIDDEN), nn.Dense(HIDDEN, WIDTH)

    def attend(self, x):
        q, k, v = (layer(x).reshape(-1, TOKENS, HEADS, SIZE) for layer in (self.query, self.key, self.value))  # @query
        score = ops.matmul(q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1)) / SIZE**0.5  # @score
        y = ops.matmul(ops.softmax(score, -1), v.transpose(0, 2, 1, 3))  # @chance @context
        return self.out(y.transpose(0, 2, 1, 3).reshape(x.shape))  # @out

    def construct(self, x, c):
        active = c * ops.sigmoid(c)  # @active
        six = ops.matmul(active, self.six) + self.six_bias  # @six
        shift1, scale1, gate1, shift2, scale2, gate2 = (part.squeeze(0) for part in mint.split(six, 1))  # @six
        x = x + self.attend(self.norm(x, shift1, scale1)) * gate1.expand_dims(1)  # @first
        h = self.enter(self.norm(x, shift2, scale2))  # @enter
        h = h * ops.sigmoid(math.sqrt(8 / math.pi) * (h + 0.044715 * h * h * h))  # @gelu
        return x + self.leave(h) * gate2.expand_dims(1)  # @leave @second


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(CHANNELS, WIDTH, 1, has_bias=True)
        self.places = ms.Parameter(ops.zeros((TOKENS, WIDTH)), name="places")
        self.time1, self.time2 = nn.Dense(WIDTH, WIDTH, activation="silu"), nn.Dense(WIDTH, WIDTH)
        self.labels = nn.Embedding(CLASSES + 1, WIDTH)
        self.blocks = nn.CellList([Layer() for _ in range(LAYERS)])
        self.norm = Norm()
        self.shift, self.scale = nn.Dense(WIDTH, WIDTH), nn.Dense(WIDTH, WIDTH)
        self.out = nn.Dense(WIDTH, CHANNELS)
        angles = np.arange(TIMES)[:, None] * 10000.0 ** (-np.arange(WIDTH // 2) / (WIDTH // 2))  # @angles_made
        self.waves = ms.Tensor(np.concatenate([np.cos(angles), np.sin(angles)], 1), ms.float32)  # @waves_made
        self.alphas = ms.Tensor(np.cos((np.arange(TIMES) / TIMES + OFFSET) / (1 + OFFSET) * np.pi / 2), ms.float32)

    def construct(self, x, t, labels, dropped):
        label = self.labels(ops.select(dropped > 0, ops.full_like(labels, CLASSES), labels))  # @label
        c = self.time2(self.time1(ops.gather(self.waves, t, 0))) + label  # @angles @waves @time @condition
        x = self.enter(x.swapaxes(1, 2)).swapaxes(1, 2) + self.places  # @entered @placed
        for block in self.blocks:
            x = block(x, c)
        c = ops.silu(c)  # @last_active
        return self.out(self.norm(x, self.shift(c), self.scale(c)))  # @two @velocity


def compute_candidate_loss(network, x, noise, t, labels, dropped):
    alpha = ops.gather(network.alphas, t, 0).reshape(-1, 1, 1)  # @alpha
    square = 1 - alpha * alpha  # @sigma
    sigma = ops.sqrt(square)  # @sigma
    found = network(alpha * x + sigma * noise, t, labels, dropped)  # @noisy
    error = found - (alpha * noise - sigma * x)  # @wanted @error
    snr = alpha * alpha / square  # @snr
    weight = ops.clamp(snr, max=LARGEST) / (snr + 1)  # @least @weight
    return ops.mean(weight * error * error)  # @errors @weighted @loss


def convert(weights: Weights) -> Weights:
    kept = ("time", "modulation", "enter.weight", "places", "blocks", "labels")
    converted = {name: array for name, array in weights.items() if not name.startswith(kept)}
    converted |= {"places": weights["places"][0], "labels.embedding_table": weights["labels.weight"]}
    converted["enter.weight"] = weights["enter.weight"][:, :, None, None]
    for word in ("weight", "bias"):
        converted |= {f"time{number}.{word}": weights[f"time.{place}.{word}"] for number, place in ((1, 0), (2, 2))}
        converted[f"shift.{word}"], converted[f"scale.{word}"] = np.split(weights[f"modulation.{word}"], 2)
    for number in range(LAYERS):
        path = f"blocks.{number}"
        six = weights[f"{path}.modulation.1.weight"].reshape(6, WIDTH, WIDTH)
        converted[f"{path}.six"] = six.transpose(0, 2, 1)
        converted[f"{path}.six_bias"] = weights[f"{path}.modulation.1.bias"].reshape(6, 1, WIDTH)
        for word in ("weight", "bias"):
            for name, part in zip(("query", "key", "value"), np.split(weights[f"{path}.qkv.{word}"], 3), strict=True):
                converted[f"{path}.{name}.{word}"] = part
            for name in ("out", "enter", "leave"):
                converted[f"{path}.{name}.{word}"] = weights[f"{path}.{name}.{word}"]
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(4200 + step)
    x, noise = random.normal(size=(2, 5, TOKENS, CHANNELS)).astype(np.float32)
    t = random.permutation(np.array([6, 10, 15, 24, 33]))
    return x, noise, t, random.integers(CLASSES, size=5), np.array([0, 0, 1, 0, 1])


FAULTS = (
    Fault(
        "gelu by the error function",
        "gelu",
        "h * ops.sigmoid(math.sqrt(8 / math.pi) * (h + 0.044715 * h * h * h))",
        "ops.gelu(h, approximate='none')",
    ),
    Fault(
        "sines before cosines",
        "waves",
        "[np.cos(angles), np.sin(angles)]",
        "[np.sin(angles), np.cos(angles)]",
        edit="waves_made",
    ),
    Fault("scale without one", "modulated", "unit + unit * scale", "unit * scale"),
    Fault(
        "shift and scale swapped in the second half",
        "six modulated",
        "gate1, shift2, scale2,",
        "gate1, scale2, shift2,",
    ),
    Fault("weight as for predicted noise", "weight", "/ (snr + 1)", "/ snr"),
    Fault(
        "gate detached", "first", "gate1.expand_dims(1)", "ops.stop_gradient(gate1).expand_dims(1)", is_backward=True
    ),
    Fault("reference divides by the size of heads", "score", "scale=SIZE**-0.5", "scale=1 / SIZE", side="reference"),
    Fault(
        "another label for none, and the velocity turned round",
        "label",
        "ops.full_like(labels, CLASSES)",
        "ops.full_like(labels, CLASSES - 1)",
        second=("wanted", "alpha * noise - sigma * x", "sigma * x - alpha * noise"),
    ),
)
