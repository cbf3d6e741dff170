"""A convolution whose taps are moved and weighed: sampled tap by tap in the reference, gathered at once in the port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

CHANNELS, WIDTH, HIGH, WIDE, CLASSES, TAPS = 3, 6, 5, 6, 4, 9


class Deformed(torch.nn.Module):
    def __init__(self, enter: int) -> None:
        super().__init__()
        self.offset = torch.nn.Conv2d(enter, 2 * TAPS, 3, padding=1)
        self.mask = torch.nn.Conv2d(enter, TAPS, 3, padding=1)
        self.weight = torch.nn.Parameter(torch.zeros(WIDTH, enter, 3, 3))
        self.bias = torch.nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        offset = self.offset(x).unflatten(1, (TAPS, 2))  # @offset
        mask = 2 * torch.sigmoid(self.mask(x))  # @mask
        rows, columns = torch.meshgrid(torch.arange(HIGH), torch.arange(WIDE), indexing="ij")
        taps = []
        for tap in range(TAPS):
            y = rows + tap // 3 - 1 + offset[:, tap, 0]  # @y
            across = columns + tap % 3 - 1 + offset[:, tap, 1]  # @x
            grid = torch.stack([2 * across / (WIDE - 1) - 1, 2 * y / (HIGH - 1) - 1], dim=-1)  # @grid
            sampled = F.grid_sample(x, grid, align_corners=True)  # @floor @part @upper @outside @sampled
            taps.append(sampled * mask[:, tap : tap + 1])  # @weighed
        columns = torch.stack(taps, dim=2).flatten(1, 2)  # @columns
        return torch.einsum("bkhw,ok->bohw", columns, self.weight.flatten(1)) + self.bias.view(-1, 1, 1)  # @conv


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Deformed(CHANNELS), Deformed(WIDTH)
        self.norm1, self.norm2 = torch.nn.GroupNorm(2, WIDTH), torch.nn.GroupNorm(2, WIDTH)
        self.act = torch.nn.PReLU(WIDTH)
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        h = self.act(self.norm1(self.first(x)))  # @norm @act
        h = h + self.norm2(self.second(h))  # @norm2 @add
        return self.head(F.adaptive_avg_pool2d(h, 1).flatten(1))  # @pool @head


def compute_reference_loss(network, x, labels):
    return F.cross_entropy(network(x), labels, label_smoothing=0.1)  # @goal @loss


class Moved(nn.Cell):
    def __init__(self, enter: int) -> None:
        super().__init__()
        self.offset = nn.Conv2d(enter, 2 * TAPS, 3, pad_mode="same", has_bias=True)
        self.mask = nn.Conv2d(enter, TAPS, 3, pad_mode="pad", padding=1, has_bias=True)
        self.weight = ms.Parameter(ops.zeros((enter * TAPS, WIDTH)), name="weight")
        self.bias = ms.Parameter(ops.zeros((WIDTH,)), name="bias")
        tap_y, tap_x = np.meshgrid([-1, 0, 1], [-1, 0, 1], indexing="ij")  # @taps_made
        y = tap_y.reshape(TAPS, 1, 1) + np.arange(HIGH).reshape(1, HIGH, 1) + np.zeros((1, 1, WIDE))
        x = tap_x.reshape(TAPS, 1, 1) + np.zeros((1, HIGH, 1)) + np.arange(WIDE).reshape(1, 1, WIDE)
        self.y, self.x = ms.Tensor(y, ms.float32), ms.Tensor(x, ms.float32)

    def pick(self, flat, y, x):
        """What is at whole places (batch, taps, rows, columns), nothing where they lie outside."""
        inside = (y >= 0) & (y < HIGH) & (x >= 0) & (x < WIDE)  # @inside
        place = mint.clamp(y, 0, HIGH - 1) * WIDE + mint.clamp(x, 0, WIDE - 1)  # @place
        place = place.astype(ms.int32).reshape(len(flat), 1, -1)
        picked = ops.gather_elements(flat, 2, ops.tile(place, (1, flat.shape[1], 1)))  # @corner
        picked = picked.reshape(len(flat), -1, TAPS, HIGH, WIDE)
        return picked * inside.astype(ms.float32).expand_dims(1)  # @outside

    def construct(self, image):
        offset = self.offset(image).reshape(-1, TAPS, 2, HIGH, WIDE)  # @offset
        by_y, by_x = (part.squeeze(2) for part in mint.split(offset, 1, 2))  # @pairs
        y, x = self.y + by_y, self.x + by_x  # @y @x
        top, left = ops.floor(y), ops.floor(x)  # @floor
        down, right = (y - top).expand_dims(1), (x - left).expand_dims(1)  # @part
        flat = image.reshape(len(image), -1, HIGH * WIDE)
        upper = self.pick(flat, top, left) * (1 - right) + self.pick(flat, top, left + 1) * right  # @upper
        lower = self.pick(flat, top + 1, left) * (1 - right) + self.pick(flat, top + 1, left + 1) * right  # @lower
        sampled = upper + (lower - upper) * down  # @sampled
        sampled = sampled * (2 * ops.sigmoid(self.mask(image))).expand_dims(1)  # @mask @weighed
        columns = sampled.reshape(len(image), -1, HIGH * WIDE).swapaxes(1, 2)  # @columns
        return ops.matmul(columns, self.weight) + self.bias  # @conv


class Candidate(nn.Cell):
    """Between the two convolutions channels are last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Moved(CHANNELS), Moved(WIDTH)
        self.gamma1, self.beta1 = (ms.Parameter(ops.zeros((WIDTH,)), name=name) for name in ("gamma1", "beta1"))
        self.gamma2, self.beta2 = (ms.Parameter(ops.zeros((WIDTH,)), name=name) for name in ("gamma2", "beta2"))
        self.slope = ms.Parameter(ops.zeros((WIDTH,)), name="slope")
        self.head = nn.Dense(WIDTH, CLASSES)

    def normalize(self, x, gamma, beta):
        groups = x.reshape(len(x), -1, 2, WIDTH // 2)  # @groups
        away = groups - groups.mean((1, 3), keep_dims=True)  # @norm @norm2
        groups = away * ops.rsqrt(ops.square(away).mean((1, 3), keep_dims=True) + 1e-5)  # @norm @norm2
        return groups.reshape(x.shape) * gamma + beta  # @norm @norm2

    def construct(self, x):
        h = self.normalize(self.first(x), self.gamma1, self.beta1)
        h = ops.relu(h) - self.slope * ops.relu(-h)  # @act
        image = h.swapaxes(1, 2).reshape(len(x), WIDTH, HIGH, WIDE)
        h = h + self.normalize(self.second(image), self.gamma2, self.beta2)  # @add
        return self.head(h.mean(1))  # @pool @head


def compute_candidate_loss(network, x, labels):
    chance = ops.log_softmax(network(x), -1)
    goal = ops.one_hot(labels, CLASSES).astype(ms.float32) * (1 - 0.1) + 0.1 / CLASSES  # @goal
    return -(goal * chance).sum(-1).mean()  # @loss


def convert(weights: Weights) -> Weights:
    converted = {"slope": weights["act.weight"]}
    converted |= {name: weights[name] for name in ("head.weight", "head.bias")}
    for number in (1, 2):
        converted[f"gamma{number}"] = weights[f"norm{number}.weight"]
        converted[f"beta{number}"] = weights[f"norm{number}.bias"]
    for name in ("first", "second"):
        converted |= {f"{name}.{one}": weights[f"{name}.{one}"] for one in ("bias", "offset.weight", "offset.bias")}
        converted |= {f"{name}.mask.{word}": weights[f"{name}.mask.{word}"] for word in ("weight", "bias")}
        converted[f"{name}.weight"] = weights[f"{name}.weight"].reshape(WIDTH, -1).T
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(4510 + step)
    rough = random.normal(size=(4, CHANNELS, HIGH + 1, WIDE + 1)).astype(np.float32)
    smooth = (rough[..., 1:, 1:] + rough[..., :-1, 1:] + rough[..., 1:, :-1] + rough[..., :-1, :-1]) / 2
    return smooth, random.integers(CLASSES, size=4)


FAULTS = (
    Fault("offsets across before offsets down", "y x pairs", "by_y, by_x =", "by_x, by_y =", edit="pairs"),
    Fault("taps in the order of columns", "y x", 'indexing="ij"', 'indexing="xy"', edit="taps_made"),
    Fault("rounded towards nothing", "floor", "ops.floor(y), ops.floor(x)", "ops.trunc(y), ops.trunc(x)"),
    Fault(
        "weights of two corners swapped",
        "upper",
        "self.pick(flat, top, left) * (1 - right) + self.pick(flat, top, left + 1) * right",
        "self.pick(flat, top, left) * right + self.pick(flat, top, left + 1) * (1 - right)",
    ),
    Fault(
        "border repeated outside", "outside upper lower", "picked * inside.astype(ms.float32).expand_dims(1)", "picked"
    ),
    Fault("rows pass no gradient to offsets", "part", "(y - top)", "ops.stop_gradient(y - top)", is_backward=True),
    Fault(
        "reference with corners not aligned", "sampled", "align_corners=True", "align_corners=False", side="reference"
    ),
    Fault(
        "weights of taps not doubled, and labels not smoothed",
        "mask",
        "(2 * ops.sigmoid(self.mask(image)))",
        "ops.sigmoid(self.mask(image))",
        second=("goal", " * (1 - 0.1) + 0.1 / CLASSES", ""),
    ),
)
