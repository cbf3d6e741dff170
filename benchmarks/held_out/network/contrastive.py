"""Two views of one thing through one encoder, and a symmetric contrastive loss over the batch."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.pair import rename
from held_out.weight import Weights

INPUT, HIDDEN, WIDTH, BATCH, TEMPERATURE = 12, 20, 8, 6, 0.2


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(INPUT, HIDDEN)
        self.bn = torch.nn.BatchNorm1d(HIDDEN)
        self.second = torch.nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        h = self.bn(self.first(x))  # @bn
        h = self.second(F.elu(h))  # @elu
        return F.normalize(h, dim=-1)  # @normalize


def compute_reference_loss(network, one, two):
    first, second = network(one), network(two)  # @encode
    logits = first @ second.T / TEMPERATURE  # @logits
    labels = torch.arange(len(logits))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2  # @loss


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(INPUT, HIDDEN)
        self.bn = nn.BatchNorm1d(HIDDEN, eps=1e-5)  # @made
        self.second = nn.Dense(HIDDEN, WIDTH)

    def construct(self, x: Tensor) -> Tensor:
        h = self.bn(self.first(x))  # @bn
        h = ops.elu(h)  # @elu
        h = self.second(h)
        size = ops.sqrt(ops.reduce_sum(ops.square(h), -1).expand_dims(-1))  # @normalize
        return h / size  # @normalize


def compute_candidate_loss(network, one, two):
    first, second = network(one), network(two)  # @encode
    logits = mint.matmul(first, second.swapaxes(0, 1)) / TEMPERATURE  # @logits
    forth = ops.log_softmax(logits, axis=1)  # @loss @forth
    back = ops.log_softmax(logits, axis=0)  # @loss @back
    diagonal = ops.eye(BATCH, BATCH, logits.dtype)
    picked = (forth + back) * diagonal  # @loss @picked
    return -picked.sum() / (2 * BATCH)  # @loss @mean


def convert(weights: Weights) -> Weights:
    return rename(weights, norms=("bn",))  # @load


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(400 + step)
    x = random.normal(size=(BATCH, INPUT))
    return tuple((x + 0.3 * random.normal(size=x.shape)).astype(np.float32) for _ in range(2))


FAULTS = (
    Fault("times the temperature", "logits", "/ TEMPERATURE", "* TEMPERATURE"),
    Fault("normalized over the batch", "normalize", "ops.square(h), -1).expand_dims(-1)", "ops.square(h), 0)"),
    Fault(
        "square root forgotten",
        "normalize",
        "ops.sqrt(ops.reduce_sum(ops.square(h), -1).expand_dims(-1))",
        "ops.reduce_sum(ops.square(h), -1).expand_dims(-1)",
    ),
    Fault("both losses along the rows", "back loss", "axis=0", "axis=1"),
    Fault(
        "second view detached",
        "logits encode",
        "network(one), network(two)",
        "network(one), ops.stop_gradient(network(two))",
        edit="encode",
        is_backward=True,
    ),
    Fault("epsilon of the batch norm", "bn", "eps=1e-5", "eps=1e-2", edit="made"),
    Fault("summed in the place of averaged", "mean loss", "/ (2 * BATCH)", "/ 2"),
    Fault("selu for elu", "elu", "ops.elu(h)", "ops.selu(h)"),
    Fault(
        "bias before the batch norm zeroed",
        "bn",
        "rename(weights",
        "rename(zero_bias(weights)",
        edit="load",
        parameter="first.bias",
        has_effect=False,
    ),
)


def zero_bias(weights: Weights) -> Weights:
    """As somebody would who saw that a batch norm takes it away again."""
    return {**weights, "first.bias": np.zeros_like(weights["first.bias"])}
