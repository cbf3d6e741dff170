"""A residual classifier of bottlenecks with smoothed labels; the port has one cell for convolution, norm and relu."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

STEM, WIDTHS, DEPTHS, GROWTH, CLASSES, SIZE, BATCH, SMOOTH = 6, (4, 6), (2, 2), 2, 5, 24, 8, 0.1
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Bottleneck(torch.nn.Module):
    def __init__(self, enter: int, width: int, stride: int) -> None:
        super().__init__()
        leave = GROWTH * width
        self.conv1 = torch.nn.Conv2d(enter, width, kernel_size=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(width)
        self.conv2 = torch.nn.Conv2d(width, width, kernel_size=3, stride=stride, padding=1, bias=False)  # @conv2_made
        self.bn2 = torch.nn.BatchNorm2d(width)
        self.conv3 = torch.nn.Conv2d(width, leave, kernel_size=1, bias=False)
        self.bn3 = torch.nn.BatchNorm2d(leave)
        self.relu = torch.nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or enter != leave:
            self.downsample = torch.nn.Sequential(
                torch.nn.Conv2d(enter, leave, kernel_size=1, stride=stride, bias=False), torch.nn.BatchNorm2d(leave)
            )

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))  # @conv1 @bn
        out = self.relu(self.bn2(self.conv2(out)))  # @conv2 @bn
        out = self.conv3(out)  # @conv3
        out = self.bn3(out)  # @bn @bn3
        if self.downsample is not None:
            identity = self.downsample(x)  # @bn @down
        out += identity  # @add
        return self.relu(out)  # @relu


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1), persistent=False)
        self.conv1 = torch.nn.Conv2d(3, STEM, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(STEM)
        self.maxpool = torch.nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.enter = STEM
        self.layer1 = self._make_layer(WIDTHS[0], DEPTHS[0], 1)
        self.layer2 = self._make_layer(WIDTHS[1], DEPTHS[1], 2)
        self.avgpool = torch.nn.AdaptiveAvgPool2d(1)
        self.fc = torch.nn.Linear(GROWTH * WIDTHS[1], CLASSES)

    def _make_layer(self, width, depth, stride):
        layers = []
        for number in range(depth):
            layers.append(Bottleneck(self.enter, width, stride if number == 0 else 1))
            self.enter = GROWTH * width
        return torch.nn.Sequential(*layers)

    def forward(self, images):
        x = (images.float() / 255 - self.mean) / self.std  # @pixels
        x = self.conv1(x)  # @stem
        x = F.relu(self.bn1(x))  # @bn @stem_bn
        x = self.maxpool(x)  # @pool
        x = self.layer2(self.layer1(x))
        x = torch.flatten(self.avgpool(x), 1)  # @average
        return self.fc(x)  # @fc


def compute_reference_loss(network, images, labels):
    return F.cross_entropy(network(images), labels, label_smoothing=SMOOTH)  # @smooth @chosen @loss


class Unit(nn.Cell):
    """Convolution, norm and, where it is wanted, relu."""

    def __init__(self, enter, leave, kernel, stride=1, active=True):
        super().__init__()
        self.conv = nn.Conv2d(enter, leave, kernel, stride, pad_mode="pad", padding=kernel // 2)  # @unit_made
        self.norm = nn.BatchNorm2d(leave, eps=1e-5, momentum=0.9)  # @norm_made
        self.active = active

    def construct(self, x):
        x = self.conv(x)  # @stem @conv1 @conv2 @conv3 @down
        x = self.norm(x)  # @bn @stem_bn @bn3 @down
        return ops.relu(x) if self.active else x  # @active


class Block(nn.Cell):
    def __init__(self, enter, width, stride):
        super().__init__()
        leave = GROWTH * width
        strides = (1, stride, 1)  # @strides
        self.reduce = Unit(enter, width, 1, strides[0])
        self.look = Unit(width, width, 3, strides[1])
        self.grow = Unit(width, leave, 1, strides[2], active=False)  # @grow_made
        has_shortcut = stride > 1 or enter != leave
        self.shortcut = Unit(enter, leave, 1, stride, active=False) if has_shortcut else nn.Identity()  # @short_made

    def construct(self, x):
        h = self.reduce(x)  # @conv1
        h = self.look(h)  # @conv2
        h = self.grow(h)  # @conv3
        return ops.relu(self.shortcut(x) + h)  # @down @add @relu


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.scale = ms.Tensor(1 / (255 * np.array(STD).reshape(3, 1, 1)), ms.float32)  # @scale_made
        self.shift = ms.Tensor(-(np.array(MEAN) / np.array(STD)).reshape(3, 1, 1), ms.float32)  # @shift_made
        self.stem = Unit(3, STEM, 7, 2)
        self.pool = nn.MaxPool2d(3, 2, pad_mode="valid")
        blocks, enter = [], STEM
        for width, depth, first in zip(WIDTHS, DEPTHS, (1, 2), strict=True):
            for number in range(depth):
                blocks.append(Block(enter, width, first if number == 0 else 1))
                enter = GROWTH * width
        self.blocks = nn.SequentialCell(blocks)
        self.head = nn.Dense(enter, CLASSES)

    def construct(self, images):
        x = images.astype(ms.float32) * self.scale + self.shift  # @pixels
        x = self.stem(x)  # @stem
        x = ops.pad(x, (1, 1, 1, 1))  # @pool @border
        x = self.pool(x)  # @pool
        x = self.blocks(x)
        x = ops.mean(x, (2, 3))  # @average
        return self.head(x)  # @fc


def compute_candidate_loss(network, images, labels):
    logs = ops.log_softmax(network(images), axis=-1)
    goal = ops.one_hot(labels, CLASSES).astype(ms.float32)
    goal = goal * (1 - SMOOTH) + SMOOTH / CLASSES  # @smooth
    return -(goal * logs).sum(-1).mean()  # @chosen @loss


def convert(weights: Weights) -> Weights:
    norms = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
    parts = {"reduce": ("conv1", "bn1"), "look": ("conv2", "bn2"), "grow": ("conv3", "bn3")}
    parts["shortcut"] = ("downsample.0", "downsample.1")
    units = {"stem.": ("conv1", "bn1")}
    for number in range(sum(DEPTHS)):
        layer, place = (1, number) if number < DEPTHS[0] else (2, number - DEPTHS[0])
        for part, names in parts.items():
            units[f"blocks.{number}.{part}."] = tuple(f"layer{layer}.{place}.{name}" for name in names)
    converted = {"head.weight": weights["fc.weight"], "head.bias": weights["fc.bias"]}
    for unit, (conv, norm) in units.items():
        if f"{conv}.weight" in weights:
            converted[f"{unit}conv.weight"] = weights[f"{conv}.weight"]
            converted |= {f"{unit}norm.{new}": weights[f"{norm}.{old}"] for old, new in norms.items()}
    last = weights["layer2.1.bn3.weight"]
    converted["blocks.3.grow.norm.gamma"] = last  # @load_last
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(7100 + step)
    return random.integers(256, size=(BATCH, 3, SIZE, SIZE)).astype(np.uint8), random.integers(CLASSES, size=BATCH)


FAULTS = (
    Fault(
        "means of channels in the order of OpenCV",
        "pixels stem",
        "(np.array(MEAN) / np.array(STD))",
        "(np.array(MEAN[::-1]) / np.array(STD))",
        edit="shift_made",
    ),
    Fault("pixels divided by 256", "pixels stem", "255 * np.array(STD)", "256 * np.array(STD)", edit="scale_made"),
    Fault(
        "same padding in every convolution",
        "stem conv2",
        'pad_mode="pad", padding=kernel // 2',
        'pad_mode="same", padding=0',
        edit="unit_made",
    ),
    Fault("pool padded at the end alone", "pool", "(1, 1, 1, 1)", "(0, 1, 0, 1)", edit="border"),
    Fault("epsilon of another framework", "bn", "eps=1e-5", "eps=1e-3", edit="norm_made"),
    Fault("momentum counted the other way", "bn", "momentum=0.9", "momentum=0.1", edit="norm_made", has_effect=False),
    Fault("stride in the first convolution", "conv1 conv2", "(1, stride, 1)", "(stride, 1, 1)", edit="strides"),
    Fault(
        "relu before the sum", "active relu add bn3", "1, strides[2], active=False", "1, strides[2]", edit="grow_made"
    ),
    Fault("relu in the shortcut", "active down add", "1, stride, active=False", "1, stride", edit="short_made"),
    Fault(
        "no gradient through the shortcut",
        "down add relu",
        "self.shortcut(x) + h",
        "ops.stop_gradient(self.shortcut(x)) + h",
        edit="add",
        is_backward=True,
    ),
    Fault("largest in the place of the mean", "average fc", "ops.mean(x, (2, 3))", "ops.amax(x, (2, 3))"),
    Fault(
        "smoothing shared by the other classes",
        "smooth chosen loss",
        "goal * (1 - SMOOTH) + SMOOTH / CLASSES",
        "goal * (1 - SMOOTH - SMOOTH / (CLASSES - 1)) + SMOOTH / (CLASSES - 1)",
    ),
    Fault(
        "last norm keeps its first scale",
        "bn3",
        "= last",
        "= np.ones_like(last)",
        edit="load_last",
        parameter="layer2.1.bn3.weight",
    ),
    Fault(
        "reference dilates its convolution",
        "conv2",
        "padding=1",
        "padding=2, dilation=2",
        edit="conv2_made",
        side="reference",
    ),
)
