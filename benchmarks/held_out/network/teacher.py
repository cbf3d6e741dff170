"""Branched residuals that follow labels and their own average: the average has moving statistics of its student."""

from __future__ import annotations

import copy
import math

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

SIDE, STEM, WIDTH, GROUPS, CLASSES, KNOWN, UNKNOWN = 8, 8, 12, 3, 5, 4, 5
RATE, MOMENTUM, DECAY, WARM, SMOOTHING, SHARP, CONSISTENT, RAMP, SLOW = 0.1, 0.9, 0.05, 3, 0.1, 0.5, 2.0, 4, 0.9


class Bottleneck(torch.nn.Module):
    def __init__(self, enter: int, leave: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = torch.nn.Conv2d(enter, WIDTH, 1, bias=False), torch.nn.BatchNorm2d(WIDTH)
        self.conv2 = torch.nn.Conv2d(WIDTH, WIDTH, 3, stride, padding=1, groups=GROUPS, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(WIDTH)
        self.conv3, self.bn3 = torch.nn.Conv2d(WIDTH, leave, 1, bias=False), torch.nn.BatchNorm2d(leave)
        self.downsample = torch.nn.Sequential(
            torch.nn.AvgPool2d(stride), torch.nn.Conv2d(enter, leave, 1, bias=False), torch.nn.BatchNorm2d(leave)
        )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))  # @conv1 @bn @relu1
        out = F.relu(self.bn2(self.conv2(out)))  # @conv2 @bn @relu2
        out = self.bn3(self.conv3(out))  # @conv3 @bn
        return F.relu(out + self.downsample(x))  # @pool @short @bn @added @relu3


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = torch.nn.Conv2d(3, STEM, 3, padding=1, bias=False), torch.nn.BatchNorm2d(STEM)
        self.layer1, self.layer2 = Bottleneck(STEM, 10, 1), Bottleneck(10, 14, 2)
        self.fc = torch.nn.Linear(14, CLASSES)

    def forward(self, x):
        x = self.layer2(self.layer1(F.relu(self.bn(self.conv(x)))))  # @stem @bn @relu0
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))  # @pooled @fc


class ReferenceTrainer:
    def __init__(self, network) -> None:
        self.student, self.teacher = network, copy.deepcopy(network).requires_grad_(False).eval()
        weights = [one for one in network.parameters() if one.ndim > 1]
        others = [one for one in network.parameters() if one.ndim <= 1]
        groups = [{"params": weights, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.SGD(groups, lr=RATE, momentum=MOMENTUM, nesterov=True)  # @made
        self.number = 0

    def adjust(self):
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (self.number + 1) / WARM)

    @torch.no_grad()
    def follow(self):
        alpha = min(1 - 1 / (self.number + 2), SLOW)
        for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            slow.mul_(alpha).add_(fast, alpha=1 - alpha)  # @average
        for slow, fast in zip(self.teacher.buffers(), self.student.buffers(), strict=True):
            slow.copy_(fast)  # @statistics

    def step(self, images, labels, strong, weak):
        self.adjust()
        logits = self.student(torch.cat([images, strong]))  # @joined
        known, unknown = logits[:KNOWN], logits[KNOWN:]
        loss = F.cross_entropy(known, labels, label_smoothing=SMOOTHING)  # @smooth @error
        with torch.no_grad():
            goal = F.softmax(self.teacher(weak) / SHARP, dim=1)  # @sharp @goal
        same = F.mse_loss(F.softmax(unknown, dim=1), goal)  # @chance @same
        weight = CONSISTENT * math.exp(-5.0 * (1.0 - min(1.0, self.number / RAMP)) ** 2)  # @ramp
        loss = loss + weight * same  # @loss
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()  # @decay @momentum @update
        self.follow()
        self.number += 1
        return loss


class ConvNorm(nn.Cell):
    """A convolution, in branches of its own for each group, and its norm."""

    def __init__(self, enter: int, leave: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        sizes = {"pad_mode": "pad", "padding": kernel // 2, "has_bias": False}
        branches = [nn.Conv2d(enter // groups, leave // groups, kernel, stride, **sizes) for _ in range(groups)]
        self.branches = nn.CellList(branches)
        self.bn = nn.BatchNorm2d(leave, momentum=0.9)  # @bn_made

    def construct(self, x):
        parts = ops.chunk(x, len(self.branches), 1)  # @parted
        parts = [self.branches[number](part) for number, part in enumerate(parts)]  # @stem @conv1 @conv2 @conv3 @short
        return self.bn(ops.cat(parts, 1) if len(parts) > 1 else parts[0])  # @parts_joined @bn


class Residual(nn.Cell):
    def __init__(self, enter: int, leave: int, stride: int) -> None:
        super().__init__()
        self.reduce, self.look = ConvNorm(enter, WIDTH), ConvNorm(WIDTH, WIDTH, 3, stride, GROUPS)
        self.grow, self.short, self.stride = ConvNorm(WIDTH, leave), ConvNorm(enter, leave), stride

    def construct(self, x):
        h = self.grow(ops.relu(self.look(ops.relu(self.reduce(x)))))  # @relu1 @relu2
        if self.stride > 1:
            x = ops.avg_pool2d(x, self.stride, self.stride)  # @pool
        return ops.relu(self.short(x) + h)  # @added @relu3


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block1, self.block2 = ConvNorm(3, STEM, 3), Residual(STEM, 10, 1), Residual(10, 14, 2)
        self.head = nn.Dense(14, CLASSES)

    def construct(self, x):
        x = self.block2(self.block1(ops.relu(self.stem(x))))  # @relu0
        return self.head(x.mean((2, 3)))  # @pooled @fc


class CandidateTrainer:
    def __init__(self, network) -> None:
        self.network, self.slow, self.number = network, Candidate(), 0
        for old, new in zip(self.slow.get_parameters(), network.get_parameters(), strict=True):
            old.set_data(ms.Tensor(new.asnumpy()))
        self.slow.set_train(False)  # @eval
        self.parameters = network.trainable_params()
        decayed = [one for one in self.parameters if one.ndim > 1]  # @decayed
        others = [one for one in self.parameters if one.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]  # @groups
        groups.append({"order_params": self.parameters})
        rates = [RATE * min(1.0, (number + 1) / WARM) for number in range(20)]  # @rates
        self.optimizer = nn.SGD(groups, rates, momentum=MOMENTUM, nesterov=True)  # @made

    def compute_loss(self, images, labels, strong, goal):
        logits = self.network(ops.cat((images, strong)))  # @joined
        logs = ops.log_softmax(logits[:KNOWN], 1)  # @error
        smooth = ops.one_hot(labels, CLASSES).astype(ms.float32) * (1 - SMOOTHING) + SMOOTHING / CLASSES  # @smooth
        loss = -(smooth * logs).sum(1).mean()  # @error
        away = ops.softmax(logits[KNOWN:], -1) - goal  # @chance @same
        part = min(self.number / RAMP, 1.0)  # @ramp
        return loss + CONSISTENT * math.exp(-5 * (1 - part) ** 2) * (away * away).mean()  # @same @loss

    def follow(self):
        keep = min(SLOW, (self.number + 1) / (self.number + 2))  # @keep
        for old, new in zip(self.slow.get_parameters(), self.network.get_parameters(), strict=True):
            if new.requires_grad:
                ops.assign(old, new + keep * (old - new))  # @average
            else:
                ops.assign(old, new)  # @statistics

    def step(self, images, labels, strong, weak):
        goal = ops.softmax(self.slow(weak) / SHARP, -1)  # @sharp @goal
        compute = ms.value_and_grad(self.compute_loss, None, self.parameters)
        loss, gradients = compute(images, labels, strong, goal)
        self.optimizer(gradients)  # @decay @momentum @update
        self.follow()  # @followed
        self.number += 1
        return loss, gradients


def convert(weights: Weights) -> Weights:
    norms = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
    converted = {f"head.{word}": weights[f"fc.{word}"] for word in ("weight", "bias")}
    units = [("conv", "bn", "stem", 1)]
    for number in (1, 2):
        old, new = f"layer{number}", f"block{number}"
        units += [(f"{old}.conv1", f"{old}.bn1", f"{new}.reduce", 1)]
        units += [(f"{old}.conv2", f"{old}.bn2", f"{new}.look", GROUPS)]
        units += [(f"{old}.conv3", f"{old}.bn3", f"{new}.grow", 1)]
        units += [(f"{old}.downsample.1", f"{old}.downsample.2", f"{new}.short", 1)]
    for conv, norm, new, groups in units:
        for number, part in enumerate(np.split(weights[f"{conv}.weight"], groups)):
            converted[f"{new}.branches.{number}.weight"] = part  # @load
        converted |= {f"{new}.bn.{name}": weights[f"{norm}.{word}"] for word, name in norms.items()}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(9200 + step)
    images, clean = random.normal(size=(KNOWN, 3, SIDE, SIDE)), random.normal(size=(UNKNOWN, 3, SIDE, SIDE))
    strong, weak = (clean + scale * random.normal(size=clean.shape) for scale in (0.8, 0.2))
    images, strong, weak = (array.astype(np.float32) for array in (images, strong, weak))
    return images, random.integers(CLASSES, size=KNOWN), strong, weak


FAULTS = (
    Fault("plain momentum", "momentum update", ", nesterov=True", "", edit="made", steps=2, first_step=1),
    Fault(
        "library's momentum with another nesterov",
        "momentum update",
        "nn.SGD(groups, rates, momentum=MOMENTUM, nesterov=True)",
        "nn.Momentum(groups, rates, MOMENTUM, use_nesterov=True)",
        edit="made",
        steps=3,
        first_step=1,
    ),
    Fault(
        "momentum damped, without nesterov",
        "momentum update",
        "momentum=MOMENTUM, nesterov=True",
        "momentum=MOMENTUM, dampening=MOMENTUM",
        edit="made",
        steps=3,
        first_step=1,
    ),
    Fault(
        "norms and biases decay too",
        "decay update",
        '"weight_decay": 0.0',
        '"weight_decay": DECAY',
        edit="groups",
        steps=2,
        first_step=1,
    ),
    Fault(
        "rate warm from the start",
        "update",
        "min(1.0, (number + 1) / WARM)",
        "1.0",
        edit="rates",
        steps=2,
        first_step=1,
    ),
    Fault(
        "rate one step behind", "update", "(number + 1) / WARM", "number / WARM", edit="rates", steps=2, first_step=1
    ),
    Fault(
        "average moves the other way round",
        "average",
        "new + keep * (old - new)",
        "old + keep * (new - old)",
        steps=3,
        first_step=2,
    ),
    Fault(
        "average does not warm up",
        "average",
        "min(SLOW, (self.number + 1) / (self.number + 2))",
        "SLOW",
        edit="keep",
        steps=2,
        first_step=1,
    ),
    Fault("average keeps its first statistics", "statistics bn", "ops.assign(old, new)", "pass", steps=2, first_step=1),
    Fault(
        "statistics averaged as weights are",
        "statistics",
        "ops.assign(old, new)",
        "ops.assign(old, new + keep * (old - new))",
        steps=2,
        first_step=1,
    ),
    Fault(
        "average never moved",
        "average statistics stem bn",
        "self.follow()",
        "pass",
        edit="followed",
        steps=2,
        first_step=1,
    ),
    Fault(
        "teacher normalizes by its batch",
        "bn goal",
        "self.slow.set_train(False)",
        "self.slow.set_train(True)",
        edit="eval",
    ),
    Fault(
        "momentum of statistics the other way round",
        "bn statistics",
        "momentum=0.9",
        "momentum=0.1",
        edit="bn_made",
        steps=2,
        first_step=1,
    ),
    Fault("goal not sharpened", "sharp goal", " / SHARP", ""),
    Fault("smoothing shared by the other classes", "smooth error", "SMOOTHING / CLASSES", "SMOOTHING / (CLASSES - 1)"),
    Fault(
        "branches from the last to the first",
        "conv2 parts_joined",
        "ops.cat(parts, 1)",
        "ops.cat(parts[::-1], 1)",
        edit="parts_joined",
    ),
    Fault(
        "reference ramps one step ahead",
        "loss same",
        "self.number / RAMP",
        "(self.number + 1) / RAMP",
        edit="ramp",
        side="reference",
    ),
    Fault(
        "relu before the sum, and a sum for the mean",
        "added relu3",
        "self.short(x) + h",
        "self.short(x) + ops.relu(h)",
        second=("same", "(away * away).mean()", "(away * away).sum(1).mean()"),
    ),
)
