"""A set of points, turned by a small network, through shared layers into the maximum over the points."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.pair import rename
from held_out.weight import Weights

POINTS, WIDTH, CLASSES = 12, 10, 4


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn1, self.turn2 = torch.nn.Conv1d(3, WIDTH, 1), torch.nn.Linear(WIDTH, 9)
        self.conv1, self.bn1 = torch.nn.Conv1d(3, WIDTH, 1), torch.nn.BatchNorm1d(WIDTH)
        self.conv2, self.bn2 = torch.nn.Conv1d(WIDTH, 2 * WIDTH, 1), torch.nn.BatchNorm1d(2 * WIDTH)
        self.head = torch.nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, points):
        x = points.transpose(1, 2)
        h = F.relu(self.turn1(x)).amax(dim=2)  # @turn
        matrix = self.turn2(h).view(-1, 3, 3) + torch.eye(3)  # @matrix
        x = torch.bmm(points, matrix).transpose(1, 2)  # @turned
        h = F.relu(self.bn1(self.conv1(x)))  # @first
        h = self.bn2(self.conv2(h))  # @second
        h = h.max(dim=2).values  # @max
        return self.head(h), matrix  # @head


def compute_reference_loss(network, points, labels):
    logits, matrix = network(points)
    gram = torch.bmm(matrix, matrix.transpose(1, 2)) - torch.eye(3)  # @gram
    penalty = torch.linalg.matrix_norm(gram).mean()  # @penalty
    return F.nll_loss(F.log_softmax(logits, dim=-1), labels) + 0.1 * penalty  # @loss


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.turn1, self.turn2 = nn.Dense(3, WIDTH), nn.Dense(WIDTH, 9)
        self.conv1, self.conv2 = nn.Dense(3, WIDTH), mint.nn.Linear(WIDTH, 2 * WIDTH)
        self.bn1 = nn.BatchNorm1d(WIDTH)  # @made1
        self.bn2 = nn.BatchNorm1d(2 * WIDTH)  # @made2
        self.head = nn.Dense(2 * WIDTH, CLASSES)

    def construct(self, points: Tensor) -> tuple[Tensor, Tensor]:
        h = ops.amax(ops.relu(self.turn1(points)), 1)  # @turn
        matrix = self.turn2(h).reshape(-1, 3, 3) + ops.eye(3, 3, points.dtype)  # @matrix
        x = mint.matmul(points, matrix).reshape(-1, 3)  # @turned
        h = ops.relu(self.bn1(self.conv1(x)))  # @first
        h = self.bn2(self.conv2(h))  # @second
        h = ops.reduce_max(h.reshape(-1, POINTS, 2 * WIDTH), 1)  # @max
        return self.head(h), matrix  # @head


def compute_candidate_loss(network, points, labels):
    logits, matrix = network(points)
    gram = ops.bmm(matrix, matrix.swapaxes(1, 2)) - ops.eye(3, 3, matrix.dtype)  # @gram
    penalty = ops.sqrt(ops.square(gram).sum((1, 2))).mean()  # @penalty
    return ops.nll_loss(ops.log_softmax(logits, -1), labels) + 0.1 * penalty  # @loss


def convert(weights: Weights) -> Weights:
    renamed = rename(weights, norms=("bn",))
    return {name: array[:, :, 0] if array.ndim == 3 else array for name, array in renamed.items()}


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(1400 + step)
    return random.normal(size=(4, POINTS, 3)).astype(np.float32), random.integers(CLASSES, size=4)


FAULTS = (
    Fault("mean over the points", "max", "ops.reduce_max(", "ops.reduce_mean("),
    Fault("identity forgotten", "matrix turned", " + ops.eye(3, 3, points.dtype)", ""),
    Fault(
        "turned by the transpose", "turned", "mint.matmul(points, matrix)", "mint.matmul(points, matrix.swapaxes(1, 2))"
    ),
    Fault(
        "epsilon of the second norm",
        "second",
        "nn.BatchNorm1d(2 * WIDTH)",
        "nn.BatchNorm1d(2 * WIDTH, eps=1e-3)",
        edit="made2",
    ),
    Fault(
        "penalty without the root", "penalty", "ops.sqrt(ops.square(gram).sum((1, 2)))", "ops.square(gram).sum((1, 2))"
    ),
    Fault("relu after the norm forgotten", "first", "ops.relu(self.bn1(self.conv1(x)))", "self.bn1(self.conv1(x))"),
    Fault(
        "matrix of the penalty detached",
        "gram",
        "ops.bmm(matrix, matrix.swapaxes(1, 2))",
        "ops.bmm(matrix, ops.stop_gradient(matrix).swapaxes(1, 2))",
        is_backward=True,
    ),
    Fault(
        "points and batch mixed up in the reshape",
        "max second",
        "h.reshape(-1, POINTS, 2 * WIDTH), 1)",
        "h.reshape(POINTS, -1, 2 * WIDTH), 0)",
    ),
)
