"""Capsules routed by agreement; the port has the classes before the capsules and routes by matrix products."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

KINDS, SIZE, PLACES, CLASSES, OUT, SIDE, ROUNDS = 2, 4, 9, 4, 6, 9, 3
CAPSULES = KINDS * PLACES


def squash(x):
    square = x.pow(2).sum(dim=-1, keepdim=True)
    return square / (1 + square) * x / torch.sqrt(square + 1e-7)  # @squash @shrink


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, KINDS * SIZE, 5, stride=2)
        self.vote = torch.nn.Parameter(torch.zeros(CAPSULES, CLASSES, SIZE, OUT))
        self.bias = torch.nn.Parameter(torch.zeros(CLASSES, OUT))
        self.rebuild = torch.nn.Linear(CLASSES * OUT, SIDE * SIDE)

    def forward(self, images, labels):
        h = torch.relu(self.conv(images)).view(-1, KINDS, SIZE, PLACES)  # @conv
        first = squash(h.permute(0, 1, 3, 2).reshape(-1, CAPSULES, SIZE))  # @first
        votes = torch.einsum("bid,ijdk->bijk", first, self.vote)  # @votes
        fixed = votes.detach()
        logits = torch.zeros(votes.shape[:3])
        for number in range(ROUNDS):
            share = F.softmax(logits, dim=2)  # @share
            used = votes if number == ROUNDS - 1 else fixed
            total = (share.unsqueeze(-1) * used).sum(dim=1) + self.bias  # @total
            found = squash(total)  # @found
            if number < ROUNDS - 1:
                logits = logits + (fixed * found.detach().unsqueeze(1)).sum(dim=-1)  # @agree @logits
        length = found.norm(dim=-1)  # @length
        chosen = found * F.one_hot(labels, CLASSES).unsqueeze(-1)  # @chosen
        return length, torch.sigmoid(self.rebuild(chosen.flatten(1)))  # @rebuild


def compute_reference_loss(network, images, labels):
    length, back = network(images, labels)
    target = F.one_hot(labels, CLASSES).float()
    present = target * F.relu(0.9 - length) ** 2  # @present
    absent = (1 - target) * F.relu(length - 0.1) ** 2  # @absent
    margin = (present + 0.5 * absent).sum(dim=1).mean()  # @margin
    return margin + 0.4 * F.mse_loss(back, images.flatten(1))  # @rebuilt @loss


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, KINDS * SIZE, 5, stride=2, pad_mode="valid", has_bias=True)
        self.vote = Parameter(ops.zeros((CAPSULES, SIZE, CLASSES * OUT)), name="vote")
        self.bias = Parameter(ops.zeros((CLASSES, 1, OUT)), name="bias")
        self.rebuild = nn.Dense(CLASSES * OUT, SIDE * SIDE, activation="sigmoid")

    def squash(self, x):
        square = ops.square(x).sum(-1, keepdims=True)
        return x * (square / (1 + square) * ops.rsqrt(square + 1e-7))  # @squash @shrink

    def route(self, votes):
        """Votes by example, class, capsule."""
        fixed = ops.stop_gradient(votes)  # @fixed
        logits = ops.zeros((len(votes), CLASSES, 1, CAPSULES), votes.dtype)
        for _ in range(ROUNDS - 1):
            found = self.squash(mint.matmul(ops.softmax(logits, axis=1), fixed) + self.bias)  # @share @total @found
            found = ops.stop_gradient(found)  # @still
            logits = logits + mint.matmul(found, fixed.swapaxes(2, 3))  # @agree @logits
        return self.squash(mint.matmul(ops.softmax(logits, axis=1), votes) + self.bias)  # @last @total @share @found

    def construct(self, images, target):
        h = ops.relu(self.conv(images)).reshape(-1, KINDS, SIZE, PLACES)  # @conv
        first = self.squash(h.swapaxes(2, 3).reshape(-1, CAPSULES, SIZE))  # @first
        votes = ops.bmm(first.swapaxes(0, 1), self.vote)  # @votes
        votes = votes.reshape(CAPSULES, -1, CLASSES, OUT).transpose(1, 2, 0, 3)  # @votes
        found = self.route(votes).squeeze(2)
        length = mint.sqrt(mint.sum(found * found, dim=-1))  # @length
        chosen = (found * target.expand_dims(2)).reshape(-1, CLASSES * OUT)  # @chosen
        return length, self.rebuild(chosen)  # @rebuild


def compute_candidate_loss(network, images, labels):
    target = ops.one_hot(labels, CLASSES).astype("float32")
    length, back = network(images, target)
    missing = ops.where(target > 0, ops.relu(0.9 - length), ops.zeros_like(length))  # @present
    extra = ops.where(target > 0, ops.zeros_like(length), ops.relu(length - 0.1))  # @absent
    margin = (ops.square(missing) + 0.5 * ops.square(extra)).sum(1).mean()  # @margin @present @absent
    rebuilt = ops.square(back - images.reshape(back.shape)).mean()  # @rebuilt
    return margin + 0.4 * rebuilt  # @loss


def convert(weights: Weights) -> Weights:
    converted = {name: weights[name] for name in ("conv.weight", "conv.bias", "rebuild.weight", "rebuild.bias")}
    converted["vote"] = weights["vote"].transpose(0, 2, 1, 3).reshape(CAPSULES, SIZE, -1)
    converted["bias"] = weights["bias"][:, None]
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(3300 + step)
    return random.uniform(0, 1, size=(3, 1, SIDE, SIDE)).astype(np.float32) * 3, random.integers(CLASSES, size=3)


FAULTS = (
    Fault(
        "shared over the capsules",
        "last share",
        "ops.softmax(logits, axis=1)",
        "ops.softmax(logits, axis=3)",
    ),
    Fault("agreement replaces the logits", "logits", "logits + mint.matmul", "mint.matmul"),
    Fault("kinds and places mixed", "first", "h.swapaxes(2, 3).reshape", "h.reshape"),
    Fault("last vote detached", "last total votes", "axis=1), votes)", "axis=1), fixed)", is_backward=True),
    Fault("length not squared in the reference", "absent margin", "- 0.1) ** 2", "- 0.1)", side="reference"),
    Fault(
        "squashed too much, and absent classes with full weight",
        "shrink",
        "/ (1 + square)",
        "/ (0.5 + square)",
        second=("margin", "0.5 * ops.square(extra)", "ops.square(extra)"),
    ),
)
