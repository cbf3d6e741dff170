"""A small U-Net with group norms and a dice and focal loss; a transposed convolution against a shuffle of pixels."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn as tnn
import torch.nn.functional as F
from mindspore import Parameter, Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

WIDTH, GROUPS, CLASSES, SMOOTH = 6, 2, 3, 1.0


class DoubleConv(tnn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.conv1 = tnn.Conv2d(inner, outer, 3, padding=1, bias=False)
        self.norm1 = tnn.GroupNorm(GROUPS, outer)
        self.conv2 = tnn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.norm2 = tnn.GroupNorm(GROUPS, outer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.norm1(self.conv1(x)))  # @double @spread @norm
        return F.silu(self.norm2(self.conv2(x)))  # @double @spread @norm


class Reference(tnn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = DoubleConv(1, WIDTH)
        self.middle = DoubleConv(WIDTH, 2 * WIDTH)
        self.bottom = DoubleConv(2 * WIDTH, 2 * WIDTH)
        self.up = tnn.ConvTranspose2d(2 * WIDTH, 2 * WIDTH, 2, stride=2, bias=False)
        self.decode = DoubleConv(4 * WIDTH, WIDTH)
        self.leave = DoubleConv(2 * WIDTH, WIDTH)
        self.head = tnn.Conv2d(WIDTH, CLASSES, 1)

    def forward(self, x):
        fine = self.enter(x)
        coarse = self.middle(F.max_pool2d(fine, 2))  # @pool1
        h = self.bottom(F.max_pool2d(coarse, 2))  # @pool2
        h = self.up(h)  # @up
        h = self.decode(torch.cat([coarse, h], dim=1))  # @join2
        h = F.interpolate(h, scale_factor=2, mode="bilinear", align_corners=False)  # @resize
        h = self.leave(torch.cat([fine, h], dim=1))  # @join1
        return self.head(h)  # @head


def compute_reference_loss(network, x, labels):
    logits = network(x)
    probability = logits.softmax(dim=1)  # @probability
    wanted = F.one_hot(labels, CLASSES).permute(0, 3, 1, 2).float()  # @wanted
    both = (probability * wanted).sum(dim=(0, 2, 3))  # @both
    total = probability.sum(dim=(0, 2, 3)) + wanted.sum(dim=(0, 2, 3))  # @total
    dice = 1 - ((2 * both + SMOOTH) / (total + SMOOTH)).mean()  # @dice
    entropy = F.cross_entropy(logits, labels, reduction="none")  # @entropy
    chance = torch.exp(-entropy)  # @chance
    focal = ((1 - chance) ** 2 * entropy).mean()  # @focal
    return dice + 0.5 * focal  # @loss


class Norm(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = Parameter(ops.ones((width,)), name="weight")
        self.bias = Parameter(ops.zeros((width,)), name="bias")

    def construct(self, x: Tensor) -> Tensor:
        grouped = x.reshape(x.shape[0], GROUPS, -1)
        center = grouped - grouped.mean(-1, keep_dims=True)  # @norm
        variance = ops.square(center).mean(-1, keep_dims=True)  # @norm @spread
        unit = (center / ops.sqrt(variance + 1e-5)).reshape(x.shape)  # @norm
        return unit * self.weight.reshape(1, -1, 1, 1) + self.bias.reshape(1, -1, 1, 1)  # @norm


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.enter = self.make_double(1, WIDTH)
        self.middle = self.make_double(WIDTH, 2 * WIDTH)
        self.bottom = self.make_double(2 * WIDTH, 2 * WIDTH)
        self.up = nn.Conv2d(2 * WIDTH, 8 * WIDTH, 1)
        self.decode = self.make_double(4 * WIDTH, WIDTH)
        self.leave = self.make_double(2 * WIDTH, WIDTH)
        self.head = nn.Conv2d(WIDTH, CLASSES, 1, has_bias=True)
        self.pool = nn.MaxPool2d(2, 2)

    def make_double(self, inner: int, outer: int) -> nn.SequentialCell:
        first, second = nn.Conv2d(inner, outer, 3), nn.Conv2d(outer, outer, 3)
        return nn.SequentialCell(first, Norm(outer), nn.SiLU(), second, Norm(outer), nn.SiLU())  # @double

    def construct(self, x: Tensor) -> Tensor:
        fine = self.enter(x)
        coarse = self.middle(self.pool(fine))  # @pool1
        h = self.bottom(self.pool(coarse))  # @pool2
        h = ops.pixel_shuffle(self.up(h), 2)  # @up
        h = self.decode(ops.cat((coarse, h), axis=1))  # @join2
        size = (2 * h.shape[2], 2 * h.shape[3])
        h = ops.interpolate(h, size=size, mode="bilinear", align_corners=False)  # @resize
        h = self.leave(mint.cat((fine, h), dim=1))  # @join1
        return self.head(h)  # @head


def compute_candidate_loss(network, x, labels):
    score = ops.log_softmax(network(x), axis=1)  # @probability @entropy
    wanted = ops.one_hot(labels, CLASSES, Tensor(1.0), Tensor(0.0), axis=1)  # @wanted
    probability = mint.exp(score)  # @probability
    both = mint.sum(probability * wanted, dim=(0, 2, 3))  # @both
    total = mint.sum(probability + wanted, dim=(0, 2, 3))  # @total
    ratio = ops.div(both * 2 + SMOOTH, total + SMOOTH)  # @dice
    picked = ops.gather_elements(score, 1, labels.expand_dims(1))  # @entropy
    factor = ops.square(1 - picked.exp())  # @chance @focal
    focal = ops.mul(factor, picked).mean()  # @focal
    return (1 - ratio.mean()) - 0.5 * focal  # @dice @loss


def convert(weights: Weights) -> Weights:
    numbers = {"conv1": 0, "norm1": 1, "conv2": 3, "norm2": 4}
    converted = {}
    for name, array in weights.items():
        first, *rest = name.split(".")
        converted[".".join((first, str(numbers[rest[0]]), rest[1])) if rest[0] in numbers else name] = array
    kernel = weights["up.weight"].transpose(1, 2, 3, 0)  # @load
    converted["up.weight"] = kernel.reshape(8 * WIDTH, 2 * WIDTH, 1, 1)
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(2100 + step)
    image = random.normal(size=(2, 1, 16, 16)).astype(np.float32)
    smooth = image[:, 0] + np.roll(image[:, 0], 1, axis=1) + np.roll(image[:, 0], 1, axis=2)
    return image, np.digitize(smooth, [-0.7, 0.9])


FAULTS = (
    Fault("corners aligned in the upsampling", "resize", "align_corners=False", "align_corners=True"),
    Fault("skip after the upsampled half", "join2", "(coarse, h)", "(h, coarse)"),
    Fault(
        "rows and columns of the kernel swapped",
        "up",
        "transpose(1, 2, 3, 0)",
        "transpose(1, 3, 2, 0)",
        edit="load",
        parameter="up.weight",
    ),
    Fault("dice smoothed below alone", "dice", "both * 2 + SMOOTH", "both * 2"),
    Fault(
        "focal factor detached",
        "focal",
        "ops.mul(factor, picked)",
        "ops.mul(ops.stop_gradient(factor), picked)",
        is_backward=True,
    ),
    Fault("easy pixels kept in the reference", "focal", "(1 - chance) ** 2", "chance**2", side="reference"),
    Fault(
        "two at once: variance of the sample and focal exponent",
        "spread",
        "ops.square(center).mean(-1, keep_dims=True)",
        "grouped.var(-1, ddof=1, keepdims=True)",
        second=("focal", "ops.square(1 - picked.exp())", "(1 - picked.exp())"),
    ),
)
