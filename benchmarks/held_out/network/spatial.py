"""A network that turns its own input: an affine grid and bilinear sampling, then a small convolution."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

SIZE, CLASSES = 8, 4


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.locate = torch.nn.Linear(SIZE * SIZE, 6)
        self.conv = torch.nn.Conv2d(1, 6, 3)
        self.norm = torch.nn.GroupNorm(2, 6)
        self.head = torch.nn.Linear(6 * 9, CLASSES)

    def forward(self, x):
        move = torch.tanh(self.locate(x.flatten(1)))  # @move
        identity = torch.tensor([1.0, 0, 0, 0, 1, 0])
        theta = (identity + 0.3 * move).view(-1, 2, 3)  # @theta
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)  # @grid
        turned = F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)  # @sample
        h = F.relu(self.norm(self.conv(turned)))  # @conv
        h = F.avg_pool2d(h, 2)  # @pool
        return self.head(h.flatten(1))  # @head


def compute_reference_loss(network, x, labels):
    return F.cross_entropy(network(x), labels)  # @loss


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.locate = nn.Dense(SIZE * SIZE, 6)
        self.conv = nn.Conv2d(1, 6, 3, pad_mode="valid", has_bias=True)
        self.norm = nn.GroupNorm(2, 6, eps=1e-5)  # @made
        self.head = mint.nn.Linear(6 * 9, CLASSES)
        axis = (2 * np.arange(SIZE, dtype=np.float32) + 1) / SIZE - 1  # @axis
        x, y = np.meshgrid(axis, axis)  # @mesh
        self.base = Tensor(np.stack([x, y, np.ones_like(x)], -1).reshape(1, -1, 3))

    def construct(self, x: Tensor) -> Tensor:
        move = ops.tanh(self.locate(x.reshape(x.shape[0], -1)))  # @move
        identity = Tensor(np.array([1, 0, 0, 0, 1, 0], np.float32))
        theta = (identity + move * 0.3).reshape(-1, 2, 3)  # @theta
        grid = ops.matmul(self.base, theta.swapaxes(1, 2)).reshape(-1, SIZE, SIZE, 2)  # @grid
        turned = ops.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)  # @sample
        h = ops.relu(self.norm(self.conv(turned)))  # @conv
        h = ops.avg_pool2d(h, 2, 2)  # @pool
        return self.head(h.flatten(start_dim=1))  # @head


def compute_candidate_loss(network, x, labels):
    return -ops.gather_elements(ops.log_softmax(network(x), -1), 1, labels.expand_dims(1)).mean()  # @loss


def convert(weights: Weights) -> Weights:
    converted = dict(weights)
    converted["norm.gamma"], converted["norm.beta"] = converted.pop("norm.weight"), converted.pop("norm.bias")
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(1100 + step)
    return random.normal(size=(3, 1, SIZE, SIZE)).astype(np.float32), random.integers(CLASSES, size=3)


FAULTS = (
    Fault("corners aligned", "sample", "align_corners=False", "align_corners=True"),
    Fault("x and y swapped in the grid", "grid", "x, y = np", "y, x = np", edit="mesh"),
    Fault("border in the place of zeros", "sample", '"zeros"', '"border"'),
    Fault("theta not transposed", "grid", "theta.swapaxes(1, 2)", "theta.reshape(-1, 3, 2)"),
    Fault(
        "grid of aligned corners",
        "grid",
        "(2 * np.arange(SIZE, dtype=np.float32) + 1) / SIZE - 1",
        "np.linspace(-1, 1, SIZE, dtype=np.float32)",
        edit="axis",
    ),
    Fault(
        "grid detached",
        "sample grid conv",
        "ops.grid_sample(x, grid,",
        "ops.grid_sample(x, ops.stop_gradient(grid),",
        is_backward=True,
    ),
    Fault("epsilon of the group norm", "conv", "eps=1e-5", "eps=1e-1", edit="made"),
    Fault("missing scale of the move", "theta", "move * 0.3", "move"),
)
