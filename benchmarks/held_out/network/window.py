"""Attention in shifted windows with a table of relative positions, and patches merged by a convolution."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops
from torch import nn as tnn

from held_out.fault import Fault
from held_out.pair import rename
from held_out.weight import Weights

SIDE, WINDOW, WIDTH, HEADS, CLASSES = 8, 4, 12, 3, 6
TOKENS, SPAN, COUNT = WINDOW * WINDOW, 2 * WINDOW - 1, SIDE // WINDOW


def partition(x: torch.Tensor) -> torch.Tensor:
    x = x.view(len(x), COUNT, WINDOW, COUNT, WINDOW, -1)
    return x.permute(0, 1, 3, 2, 4, 5).flatten(0, 2).flatten(1, 2)  # @cut


def make_mask(shift: int) -> torch.Tensor:
    region = torch.zeros(1, SIDE, SIDE, 1)
    parts = (slice(0, -WINDOW), slice(-WINDOW, -shift), slice(-shift, None))
    for number in range(9):
        region[:, parts[number // 3], parts[number % 3], :] = number
    flat = partition(region).squeeze(-1)
    return (flat[:, None] != flat[:, :, None]).float() * -100.0


class Block(tnn.Module):
    def __init__(self, shift: int) -> None:
        super().__init__()
        self.shift, self.mask = shift, make_mask(shift) if shift else None
        self.norm1, self.norm2 = tnn.LayerNorm(WIDTH), tnn.LayerNorm(WIDTH)
        self.qkv, self.proj = tnn.Linear(WIDTH, 3 * WIDTH), tnn.Linear(WIDTH, WIDTH)
        self.table = tnn.Parameter(torch.zeros(SPAN * SPAN, HEADS))
        grid = torch.cartesian_prod(torch.arange(WINDOW), torch.arange(WINDOW))
        apart = grid[:, None] - grid + WINDOW - 1
        self.index = apart[..., 0] * SPAN + apart[..., 1]
        self.up, self.down = tnn.Linear(WIDTH, 2 * WIDTH), tnn.Linear(2 * WIDTH, WIDTH)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(x).reshape(len(x), TOKENS, 3, HEADS, -1).permute(2, 0, 3, 1, 4)  # @qkv
        query, key, value = qkv.unbind(0)
        query = query * (WIDTH // HEADS) ** -0.5  # @scale
        scores = query @ key.transpose(-2, -1)  # @scores @scale
        bias = self.table[self.index.view(-1)].view(TOKENS, TOKENS, HEADS)  # @bias
        scores = scores + bias.permute(2, 0, 1)  # @biased
        if self.mask is not None:
            scores = scores.unflatten(0, (-1, COUNT * COUNT)) + self.mask.unsqueeze(1)  # @masked
            scores = scores.flatten(0, 1)
        mixed = scores.softmax(dim=-1) @ value  # @softmax
        return self.proj(mixed.transpose(1, 2).reshape(x.shape))  # @proj

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.roll(self.norm1(x), (-self.shift, -self.shift), dims=(1, 2))  # @norm1 @shift
        h = self.attend(partition(h)).view(-1, COUNT, COUNT, WINDOW, WINDOW, WIDTH)
        h = h.permute(0, 1, 3, 2, 4, 5).reshape(x.shape)  # @glue
        x = x + torch.roll(h, (self.shift, self.shift), dims=(1, 2))  # @back @first
        return x + self.down(F.gelu(self.up(self.norm2(x))))  # @norm2 @hidden @second


class Reference(tnn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = tnn.Conv2d(3, WIDTH, 2, stride=2)
        self.blocks = tnn.ModuleList([Block(0), Block(WINDOW // 2)])
        self.merge = tnn.Linear(4 * WIDTH, 2 * WIDTH, bias=False)
        self.norm, self.head = tnn.LayerNorm(2 * WIDTH), tnn.Linear(2 * WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x).permute(0, 2, 3, 1)  # @embed
        for block in self.blocks:
            x = block(x)
        corners = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
        x = self.merge(torch.cat(corners, dim=-1))  # @merge
        return self.head(self.norm(x).mean(dim=(1, 2)))  # @norm @mean


def compute_reference_loss(network, x, labels):
    return F.cross_entropy(network(x), labels)  # @loss


class CandidateBlock(nn.Cell):
    def __init__(self, shift: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm((WIDTH,), epsilon=1e-5) for _ in range(2))
        self.query, self.pair = mint.nn.Linear(WIDTH, WIDTH), mint.nn.Linear(WIDTH, 2 * WIDTH)
        sizes = ((WIDTH, WIDTH), (WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH))
        self.proj, self.up, self.down = (nn.Dense(*size) for size in sizes)
        self.table = ms.Parameter(ops.zeros((HEADS, SPAN * SPAN)), name="table")
        row, column = np.divmod(np.arange(TOKENS), WINDOW)
        down, right = row[:, None] - row + WINDOW - 1, column[:, None] - column + WINDOW - 1
        self.index = ms.Tensor(down * SPAN + right, ms.int32)  # @index
        part = np.digitize(np.arange(SIDE), [SIDE - WINDOW, SIDE - shift]).reshape(-1, WINDOW)
        region = (3 * part[:, None, :, None] + part[None, :, None, :]).reshape(-1, TOKENS)
        self.shift, self.apart = shift, ms.Tensor(region[:, None, :] != region[:, :, None])

    def split(self, x: ms.Tensor) -> ms.Tensor:
        return mint.transpose(x.reshape(-1, TOKENS, HEADS, WIDTH // HEADS), 1, 2)

    def attend(self, x: ms.Tensor) -> ms.Tensor:
        query = self.split(self.query(x))  # @qkv
        key, value = mint.chunk(self.pair(x), 2, dim=-1)  # @qkv
        scores = mint.matmul(query, self.split(key).swapaxes(-1, -2))  # @scores
        scores = scores / (WIDTH // HEADS) ** 0.5  # @scale
        bias = ops.gather(self.table, self.index, 1)  # @bias
        scores = scores + bias  # @biased
        if self.shift:
            apart = mint.tile(self.apart, (len(x) // COUNT**2, 1, 1))  # @masked
            scores = ops.masked_fill(scores, apart.expand_dims(1), -1e4)  # @masked
        mixed = mint.matmul(ops.softmax(scores, -1), self.split(value))  # @softmax
        return self.proj(mixed.swapaxes(1, 2).reshape(x.shape))  # @proj

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        h, step = self.norm1(x), self.shift  # @norm1
        if step:
            h = mint.cat((h[:, step:], h[:, :step]), dim=1)  # @shift
            h = mint.cat((h[:, :, step:], h[:, :, :step]), dim=2)  # @shift
        h = h.reshape(-1, COUNT, WINDOW, COUNT, WINDOW, WIDTH).transpose(0, 1, 3, 2, 4, 5)  # @cut
        h = self.attend(h.reshape(-1, TOKENS, WIDTH))
        h = h.reshape(-1, COUNT, COUNT, WINDOW, WINDOW, WIDTH).transpose(0, 1, 3, 2, 4, 5)  # @glue
        h = h.reshape(x.shape)
        if step:
            h = mint.cat((h[:, -step:], h[:, :-step]), dim=1)  # @back
            h = mint.cat((h[:, :, -step:], h[:, :, :-step]), dim=2)  # @back
        x = x + h  # @first
        return x + self.down(ops.gelu(self.up(self.norm2(x))))  # @norm2 @hidden @second


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, WIDTH, 2, stride=2, pad_mode="valid", has_bias=True)
        self.blocks = nn.SequentialCell(CandidateBlock(0), CandidateBlock(WINDOW // 2))
        self.merge = nn.Conv2d(WIDTH, 2 * WIDTH, 2, stride=2, pad_mode="valid")
        self.norm, self.head = nn.LayerNorm((2 * WIDTH,), epsilon=1e-5), nn.Dense(2 * WIDTH, CLASSES)  # @made

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        x = self.blocks(self.embed(x).permute(0, 2, 3, 1))  # @embed
        x = self.merge(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)  # @merge
        return self.head(ops.mean(self.norm(x), (1, 2)))  # @norm @mean


def compute_candidate_loss(network, x, labels):
    return ops.cross_entropy(network(x), labels)  # @loss


def convert(weights: Weights) -> Weights:
    converted = rename(weights, norms=("norm",))
    for name in [name for name in converted if "qkv" in name]:
        both = np.split(converted.pop(name), [WIDTH])
        converted[name.replace("qkv", "query")], converted[name.replace("qkv", "pair")] = both
    converted |= {name: array.T for name, array in weights.items() if name.endswith("table")}
    kernel = weights["merge.weight"].reshape(-1, 2, 2, WIDTH)  # column, row, channel
    return converted | {"merge.weight": kernel.transpose(0, 3, 2, 1)}  # @load


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(2200 + step)
    return random.normal(size=(3, 3, 16, 16)).astype(np.float32), random.integers(CLASSES, size=3)


FAULTS = (
    Fault("columns rolled on, not back", "back", "h[:, :, -step:], h[:, :, :-step]", "h[:, :, step:], h[:, :, :step]"),
    Fault("rows and columns of the table swapped", "bias", "down * SPAN + right", "right * SPAN + down", edit="index"),
    Fault(
        "masks in the order of another batch",
        "masked",
        "mint.tile(self.apart, (len(x) // COUNT**2, 1, 1))",
        "mint.tile(self.apart, (1, len(x) // COUNT**2, 1)).reshape(-1, TOKENS, TOKENS)",
    ),
    Fault("corners in the order of rows", "merge", "3, 2, 1", "3, 1, 2", edit="load", parameter="merge.weight"),
    Fault("table detached", "biased bias", "scores + bias", "scores + ops.stop_gradient(bias)", is_backward=True),
    Fault("gelu by tanh in the reference", "hidden", "norm2(x))", "norm2(x)), approximate='tanh'", side="reference"),
    Fault(
        "two at once: scale and epsilon",
        "scale",
        "WIDTH // HEADS",
        "WIDTH",
        second=("made", "epsilon=1e-5", "epsilon=1e-2"),
    ),
)
