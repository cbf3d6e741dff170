"""Grouped queries in a sliding window with slopes and low-rank adapters; the port adds the adapters to the weights."""

from __future__ import annotations

import mindspore
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.pair import rename
from held_out.weight import Weights

WORDS, WIDTH, HEADS, SHARED, SIZE, HIDDEN, TIME, WINDOW = 21, 16, 4, 2, 4, 24, 9, 4
RANK, ALPHA, LAYERS, SQUARE = 4, 2.0, 2, 0.02


class Adapted(torch.nn.Module):
    """A frozen layer and what is learned on top of it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = torch.nn.Linear(inputs, outputs, bias=False).requires_grad_(False)  # @frozen
        self.down = torch.nn.Linear(inputs, RANK, bias=False)
        self.up = torch.nn.Linear(RANK, outputs, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x)) * (ALPHA / RANK)  # @adapted @base


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.query, self.key = Adapted(WIDTH, WIDTH), torch.nn.Linear(WIDTH, SHARED * SIZE, bias=False)
        self.value, self.out = Adapted(WIDTH, SHARED * SIZE), torch.nn.Linear(WIDTH, WIDTH)
        self.feed = torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.GELU(), torch.nn.Linear(HIDDEN, WIDTH))

    def forward(self, x, bias):
        h = self.norm1(x)
        query = self.query(h).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)  # @grouped
        key = self.key(h).unflatten(-1, (SHARED, SIZE)).transpose(1, 2)
        value = self.value(h).unflatten(-1, (SHARED, SIZE)).transpose(1, 2)
        key = key.repeat_interleave(HEADS // SHARED, dim=1)  # @grouped
        value = value.repeat_interleave(HEADS // SHARED, dim=1)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)  # @scores @biased @masked
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.norm2(x))  # @feed


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        slopes = 2.0 ** (-8.0 / HEADS * torch.arange(1, HEADS + 1))  # @slopes
        back = torch.arange(TIME)[:, None] - torch.arange(TIME)[None, :]
        hidden = (back < 0) | (back >= WINDOW)  # @window
        bias = (-slopes.view(HEADS, 1, 1) * back).masked_fill(hidden, -torch.inf)  # @bias @window
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, bias)
        return self.head(self.norm(x))


def compute_reference_loss(network, tokens, labels, step):
    logits = network(tokens).flatten(0, 1)
    square = torch.logsumexp(logits, dim=-1).pow(2).mean()  # @square
    weight = min(1, (step + 1) / 2) * SQUARE
    return F.cross_entropy(logits, labels.flatten()) + weight * square  # @loss


class Merged(nn.Cell):
    """The adapter is added to the weight, and only one product is computed."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = Parameter(ops.zeros((outputs, inputs)), name="base")
        self.down = Parameter(ops.zeros((RANK, inputs)), name="down")
        self.up = Parameter(ops.zeros((outputs, RANK)), name="up")

    def construct(self, x: Tensor) -> Tensor:
        change = ops.matmul(self.up, self.down) * (ALPHA / RANK)  # @adapted
        weight = ops.stop_gradient(self.base) + change  # @base @merged
        return ops.dense(x, weight)  # @base


class CandidateLayer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm([WIDTH], epsilon=1e-5), nn.LayerNorm([WIDTH], epsilon=1e-5)
        self.query, self.value = Merged(WIDTH, WIDTH), Merged(WIDTH, SHARED * SIZE)
        self.key, self.out = nn.Dense(WIDTH, SHARED * SIZE, has_bias=False), nn.Dense(WIDTH, WIDTH)
        self.widen, self.narrow = mint.nn.Linear(WIDTH, HIDDEN), mint.nn.Linear(HIDDEN, WIDTH)

    def construct(self, x: Tensor, bias: Tensor, seen: Tensor) -> Tensor:
        h = self.norm1(x)
        batch = h.shape[0]
        query = self.query(h).reshape(batch, TIME, SHARED, HEADS // SHARED, SIZE).permute(0, 2, 3, 1, 4)  # @grouped
        key = self.key(h).reshape(batch, TIME, SHARED, 1, SIZE).permute(0, 2, 3, 4, 1)
        value = self.value(h).reshape(batch, TIME, SHARED, 1, SIZE).permute(0, 2, 3, 1, 4)
        scores = ops.matmul(query * SIZE**-0.5, key)  # @scores
        scores = scores + bias  # @biased
        scores = ops.where(seen, scores, Tensor(-1e30))  # @masked
        mixed = ops.matmul(ops.softmax(scores), value)
        mixed = mixed.permute(0, 3, 1, 2, 4).reshape(batch, TIME, WIDTH)
        x = self.out(mixed) + x
        h = ops.gelu(self.widen(self.norm2(x)), approximate="none")  # @feed
        return self.narrow(h) + x  # @feed


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.CellList([CandidateLayer() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm([WIDTH], epsilon=1e-5)
        self.head = nn.Dense(WIDTH, WORDS, has_bias=False)
        slopes = np.exp2(-8 * (np.arange(HEADS) + 1) / HEADS).reshape(SHARED, -1, 1, 1)  # @made
        back = np.subtract.outer(np.arange(TIME), np.arange(TIME))
        self.bias = Tensor(slopes * -back, mindspore.float32)
        self.seen = Tensor((back >= 0) & (back < WINDOW))  # @made

    def construct(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, self.bias, self.seen)
        return self.head(self.norm(x))


def compute_candidate_loss(network, tokens, labels, step):
    logits = network(tokens)
    total = ops.logsumexp(logits, -1)
    chosen = ops.gather_elements(logits, 2, labels.expand_dims(-1)).squeeze(-1)
    weight = SQUARE / 2 if step == 0 else SQUARE  # @weight
    return ops.mean(total - chosen) + weight * ops.mean(ops.square(total))  # @square @loss


def convert(weights: Weights) -> Weights:
    converted = rename(weights, norms=("norm",), names={"words.weight": "words.embedding_table"})
    words = {"feed.0": "widen", "feed.2": "narrow", "base.weight": "base", "down.weight": "down", "up.weight": "up"}
    for old, new in words.items():
        converted = {name.replace(old, new): array for name, array in converted.items()}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    tokens = np.random.default_rng(1800 + step).integers(WORDS, size=(2, TIME + 1))
    return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])


FAULTS = (
    Fault("slopes begin at one", "biased bias slopes", "(np.arange(HEADS) + 1)", "np.arange(HEADS)", edit="made"),
    Fault("window one longer", "masked window", "back < WINDOW", "back <= WINDOW", edit="made"),
    Fault("adapter without its scale", "adapted merged", " * (ALPHA / RANK)", ""),
    Fault(
        "adapter frozen too",
        "merged adapted",
        "ops.stop_gradient(self.base) + change",
        "ops.stop_gradient(self.base + change)",
        is_backward=True,
    ),
    Fault("groups of queries interleaved", "grouped scores", ".permute(0, 2, 3, 1, 4)", ".permute(0, 3, 2, 1, 4)"),
    Fault(
        "weight of the square from step 1 on",
        "loss",
        "if step == 0",
        "if step < 2",
        edit="weight",
        steps=2,
        first_step=1,
    ),
    Fault(
        "base learns in the reference",
        "base frozen",
        ".requires_grad_(False)",
        "",
        edit="frozen",
        side="reference",
        is_backward=True,
    ),
)
