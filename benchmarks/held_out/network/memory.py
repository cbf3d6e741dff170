"""A memory read and written by content and by place: rolled in the reference, a matrix of shifts in the port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

ENTER, HIDDEN, SLOTS, SIZE, TIME = 5, 8, 6, 4, 4
TURNS = np.stack([np.roll(np.eye(SLOTS, dtype=np.float32), turn, axis=1) for turn in (-1, 0, 1)])


class Head(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key, self.erase, self.add = (torch.nn.Linear(HIDDEN, SIZE) for _ in range(3))
        self.strength, self.gate, self.sharp = (torch.nn.Linear(HIDDEN, 1) for _ in range(3))
        self.shift = torch.nn.Linear(HIDDEN, 3)

    def forward(self, h, weight, memory):
        likeness = F.cosine_similarity(self.key(h).unsqueeze(1), memory, dim=-1)  # @key @likeness
        content = F.softmax(F.softplus(self.strength(h)) * likeness, dim=1)  # @strength @content
        gate = torch.sigmoid(self.gate(h))  # @gate
        mixed = gate * content + (1 - gate) * weight  # @mixed
        shift = F.softmax(self.shift(h), dim=-1)  # @shift
        turned = sum(shift[:, n : n + 1] * mixed.roll(n - 1, dims=1) for n in range(3))  # @turned
        sharp = turned ** (1 + F.softplus(self.sharp(h)))  # @sharp @raised
        weight = sharp / sharp.sum(dim=1, keepdim=True)  # @weight
        erased = memory * (1 - weight.unsqueeze(2) * torch.sigmoid(self.erase(h)).unsqueeze(1))  # @erase @erased
        memory = erased + weight.unsqueeze(2) * torch.tanh(self.add(h)).unsqueeze(1)  # @add @written
        return weight, memory


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.control = torch.nn.Linear(ENTER + SIZE, HIDDEN)
        self.head = Head()
        self.memory = torch.nn.Parameter(torch.zeros(SLOTS, SIZE))
        self.out = torch.nn.Linear(HIDDEN + SIZE, ENTER)

    def forward(self, x):
        memory = self.memory.expand(len(x), -1, -1)
        weight = F.one_hot(torch.zeros(len(x), dtype=torch.long), SLOTS).float()
        read, outputs = torch.zeros(len(x), SIZE), []
        for time in range(TIME):
            h = torch.tanh(self.control(torch.cat([x[:, time], read], dim=1)))  # @control
            weight, memory = self.head(h, weight, memory)
            read = torch.einsum("bn,bnd->bd", weight, memory)  # @read
            outputs.append(self.out(torch.cat([h, read], dim=1)))  # @out
        return torch.stack(outputs, dim=1), memory  # @out


def compute_reference_loss(network, x, target, mask):
    logits, memory = network(x)
    losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(dim=2)  # @entropy
    loss = (losses * mask).sum() / mask.sum()  # @masked @average
    return loss + 0.1 * (memory - memory.mean(dim=1, keepdim=True)).pow(2).mean()  # @spread @loss


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.control = nn.Dense(ENTER + SIZE, HIDDEN, activation="tanh")
        self.head = nn.Dense(HIDDEN, 3 * SIZE + 6)
        self.memory = ms.Parameter(ops.zeros((SLOTS, SIZE)), name="memory")
        self.out = nn.Dense(HIDDEN + SIZE, ENTER)
        self.turns = ms.Tensor(TURNS.reshape(3, -1))

    def address(self, weight, memory, key, scalars, shift):
        size = ops.sqrt(ops.square(key).sum(-1, keepdims=True)) * ops.sqrt(ops.square(memory).sum(-1))  # @likeness
        likeness = ops.bmm(memory, key.expand_dims(2)).squeeze(2) / size  # @likeness
        content = ops.softmax(likeness * ops.softplus(scalars[:, :1]), axis=-1)  # @strength @content
        gate = mint.sigmoid(scalars[:, 1:2])  # @gate
        mixed = weight + gate * (content - weight)  # @mixed
        turn = ops.matmul(ops.softmax(shift), self.turns).reshape(-1, SLOTS, SLOTS)  # @shift @turn
        turned = ops.bmm(mixed.expand_dims(1), turn).squeeze(1)  # @turned
        sharp = ops.pow(turned, ops.softplus(scalars[:, 2:]) + 1)  # @sharp @raised
        return sharp / sharp.sum(axis=1, keepdims=True)  # @weight

    def construct(self, x):
        count = len(x)
        memory = ops.tile(self.memory.expand_dims(0), (count, 1, 1))
        weight = ops.tile(ops.eye(SLOTS, SLOTS, ms.float32)[:1], (count, 1))
        read, outputs = ops.zeros((count, SIZE), ms.float32), []
        for time in range(TIME):
            h = self.control(ops.cat((x[:, time], read), axis=1))  # @control
            key, erase, add, scalars, shift = mint.split(self.head(h), [SIZE] * 3 + [3, 3], dim=1)  # @key @heads
            weight = self.address(weight, memory, key, scalars, shift)  # @addressed
            column = weight.expand_dims(2)
            erased = memory - memory * ops.bmm(column, ops.sigmoid(erase).expand_dims(1))  # @erase @erased
            memory = erased + ops.bmm(column, ops.tanh(add).expand_dims(1))  # @add @written
            read = ops.bmm(weight.expand_dims(1), memory).squeeze(1)  # @read
            outputs.append(ops.cat((h, read), axis=1))
        return self.out(ops.stack(outputs, axis=1)), memory  # @out


def compute_candidate_loss(network, x, target, mask):
    logits, memory = network(x)
    losses = ops.softplus(logits) - logits * target  # @entropy
    loss = (losses.mean(-1) * mask).sum() / mask.sum()  # @masked @average
    spread = ops.square(memory - memory.mean(1, keep_dims=True)).mean()  # @spread
    return loss + 0.1 * spread  # @loss


def convert(weights: Weights) -> Weights:
    converted = {name: array for name, array in weights.items() if not name.startswith("head.")}
    order = ("key", "erase", "add", "strength", "gate", "sharp", "shift")
    for word in ("weight", "bias"):
        converted[f"head.{word}"] = np.concatenate([weights[f"head.{name}.{word}"] for name in order])
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(3500 + step)
    x = random.normal(size=(3, TIME, ENTER)).astype(np.float32)
    target = random.integers(2, size=(3, TIME, ENTER)).astype(np.float32)
    return x, target, (np.arange(TIME) >= np.array([[1], [2], [0]])).astype(np.float32)


FAULTS = (
    Fault(
        "turned the other way",
        "turned turn",
        "mixed.expand_dims(1), turn)",
        "mixed.expand_dims(1), turn.swapaxes(1, 2))",
    ),
    Fault("gate the other way", "mixed", "weight + gate * (content - weight)", "content + gate * (weight - content)"),
    Fault(
        "sharpened without the one", "sharp raised", "ops.softplus(scalars[:, 2:]) + 1", "ops.softplus(scalars[:, 2:])"
    ),
    Fault(
        "old weight detached",
        "mixed addressed",
        "weight + gate * (content - weight)",
        "ops.stop_gradient(weight) + gate * (content - ops.stop_gradient(weight))",
        is_backward=True,
    ),
    Fault(
        "written before it is erased in the reference",
        "erased written",
        "erased + weight",
        "memory + weight",
        edit="written",
        side="reference",
    ),
    Fault(
        "likeness without lengths, and averaged over all times",
        "likeness content",
        ".squeeze(2) / size",
        ".squeeze(2)",
        second=("average", "/ mask.sum()", "/ mask.size"),
    ),
)
