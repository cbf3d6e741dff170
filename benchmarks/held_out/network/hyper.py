"""A network that makes the kernels of another one, standardised, for each example: grouped convolution or columns."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

TASKS, EMBED, HIDDEN, ENTER, WIDTH, SIDE, OUT = 5, 6, 8, 3, 6, 6, 4


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tasks = torch.nn.Embedding(TASKS, EMBED)
        self.hidden = torch.nn.Linear(EMBED, HIDDEN)
        self.kernel = torch.nn.Linear(HIDDEN, WIDTH * ENTER * 9)
        self.offset = torch.nn.Linear(HIDDEN, WIDTH)
        self.film = torch.nn.Linear(HIDDEN, 2 * WIDTH)
        self.norm = torch.nn.GroupNorm(3, WIDTH)
        self.head = torch.nn.Linear(WIDTH, OUT)

    def forward(self, images, tasks):
        count = len(images)
        code = F.gelu(self.hidden(self.tasks(tasks)))  # @tasks @hidden @code
        kernel = self.kernel(code).view(count, WIDTH, ENTER * 9)  # @kernel @shape
        variance, mean = torch.var_mean(kernel, dim=-1, keepdim=True)  # @variance @mean
        kernel = (kernel - mean) / torch.sqrt(variance * ENTER * 9 + 1e-4)  # @standard
        joined = images.reshape(1, count * ENTER, SIDE, SIDE)
        kernel, offset = kernel.view(-1, ENTER, 3, 3), self.offset(code).flatten()  # @offset
        h = F.conv2d(joined, kernel, offset, padding=1, groups=count).view(count, WIDTH, SIDE, SIDE)  # @columns @conv
        scale, shift = self.film(code)[..., None, None].chunk(2, dim=1)  # @film @halves
        h = F.gelu(self.norm(h) * (1 + scale) + shift)  # @norm @modulate @active
        return self.head(F.adaptive_avg_pool2d(h, 1).flatten(1)), kernel  # @pool @head


def compute_reference_loss(network, images, tasks, target):
    out, kernel = network(images, tasks)
    weight = torch.softmax(-((out.detach() - target) ** 2).mean(dim=1), dim=0)  # @judged @weight
    loss = (weight * F.huber_loss(out, target, reduction="none", delta=0.5).mean(dim=1)).sum()  # @huber @weighted
    return loss + 0.1 * kernel.abs().mean()  # @sparse @loss


class Maker(nn.Cell):
    """All that is made of a task."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = nn.Embedding(TASKS, EMBED)
        self.hidden = nn.Dense(EMBED, HIDDEN)
        self.made = nn.Dense(HIDDEN, WIDTH * (ENTER * 9 + 3))

    def construct(self, tasks):
        code = ops.gelu(self.hidden(self.tasks(tasks)), approximate="none")  # @tasks @hidden @code
        made = self.made(code)  # @kernel @offset @film
        return mint.split(made, [WIDTH * ENTER * 9, WIDTH, WIDTH, WIDTH], dim=1)  # @halves


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.maker = Maker()
        self.gamma = ms.Parameter(ops.ones((WIDTH, 1)), name="gamma")
        self.beta = ms.Parameter(ops.zeros((WIDTH, 1)), name="beta")
        self.head = nn.Dense(WIDTH, OUT)

    def normalize(self, h):
        groups = h.reshape(len(h), 3, -1)
        groups = groups - ops.mean(groups, -1, True)  # @norm
        groups = groups / ops.sqrt(ops.square(groups).mean(-1, keep_dims=True) + 1e-5)  # @norm
        return groups.reshape(h.shape) * self.gamma + self.beta  # @norm

    def construct(self, images, tasks):
        kernel, offset, scale, shift = self.maker(tasks)
        kernel = kernel.reshape(-1, WIDTH, ENTER * 9)  # @shape
        kernel = kernel - kernel.mean(-1, keep_dims=True)  # @mean
        total = ops.square(kernel).sum(-1, keepdims=True) / (1 - 1 / (ENTER * 9))  # @variance
        kernel = kernel * ops.rsqrt(total + 1e-4)  # @standard
        padded = ops.pad(images, (1, 1, 1, 1))  # @padded
        shifted = [padded[:, :, row : row + SIDE, column : column + SIDE] for row in range(3) for column in range(3)]
        columns = ops.stack(shifted, axis=2).reshape(-1, ENTER * 9, SIDE * SIDE)  # @columns
        h = ops.bmm(kernel, columns) + offset.expand_dims(2)  # @conv
        h = self.normalize(h) * (1 + scale.expand_dims(2)) + shift.expand_dims(2)  # @modulate
        h = ops.gelu(h, approximate="none")  # @active
        return self.head(h.mean(axis=2)), kernel  # @pool @head


def compute_candidate_loss(network, images, tasks, target):
    out, kernel = network(images, tasks)
    error = out - target
    judged = ops.square(ops.stop_gradient(out) - target).mean(axis=1)  # @judged
    weight = ops.softmax(-judged, axis=0)  # @weight
    size = ops.abs(error)
    huber = ops.where(size < 0.5, 0.5 * ops.square(error), 0.5 * (size - 0.25))  # @huber
    loss = (huber.mean(1) * weight).sum()  # @weighted
    return loss + 0.1 * ops.abs(kernel).mean()  # @sparse @loss


def convert(weights: Weights) -> Weights:
    converted = {name: weights[name] for name in ("head.weight", "head.bias")}
    converted["maker.tasks.embedding_table"] = weights["tasks.weight"]
    for word in ("weight", "bias"):
        converted[f"maker.hidden.{word}"] = weights[f"hidden.{word}"]
        converted[f"maker.made.{word}"] = np.concatenate([weights[f"{n}.{word}"] for n in ("kernel", "offset", "film")])
    converted["gamma"], converted["beta"] = weights["norm.weight"][:, None], weights["norm.bias"][:, None]
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(3400 + step)
    images = random.normal(size=(4, ENTER, SIDE, SIDE)).astype(np.float32)
    return images, np.array([0, 3, 3, 4]), random.normal(size=(4, OUT)).astype(np.float32)


FAULTS = (
    Fault("gelu by tanh", "code", 'approximate="none"', 'approximate="tanh"'),
    Fault(
        "kernel cut the other way", "shape mean conv", "-1, WIDTH, ENTER * 9)", "-1, ENTER * 9, WIDTH).swapaxes(1, 2)"
    ),
    Fault("variance of all instead of a sample", "variance", " / (1 - 1 / (ENTER * 9))", ""),
    Fault("judged with a gradient", "judged", "ops.stop_gradient(out)", "out", is_backward=True),
    Fault("scale without its one in the reference", "modulate", "(1 + scale)", "scale", side="reference"),
    Fault(
        "scale and shift swapped, and weights over the classes",
        "modulate",
        "(1 + scale.expand_dims(2)) + shift.expand_dims(2)",
        "(1 + shift.expand_dims(2)) + scale.expand_dims(2)",
        second=("weighted", "(huber.mean(1) * weight).sum()", "(huber.mean(1) * weight).mean()"),
    ),
)
