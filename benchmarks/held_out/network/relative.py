"""An encoder and a decoder with bucketed relative positions; buckets by numpy and joined projections in the port."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

WORDS, WIDTH, HEADS, HIDDEN, BUCKETS, FARTHEST, SOURCE, TARGET = 24, 16, 4, 20, 8, 12, 9, 7
SIZE, IGNORED = WIDTH // HEADS, -100


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x, memory, bias):
        query = self.q(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)
        key = self.k(memory).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)  # @memory
        value = self.v(memory).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)  # @memory
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)  # @attend @padded
        return self.o(mixed.transpose(1, 2).flatten(2))


class Block(torch.nn.Module):
    def __init__(self, is_decoder: bool) -> None:
        super().__init__()
        self.is_decoder, self.number = is_decoder, BUCKETS if is_decoder else BUCKETS // 2
        self.places = torch.nn.Embedding(BUCKETS, HEADS)
        self.norms = torch.nn.ModuleList([torch.nn.RMSNorm(WIDTH, eps=1e-6) for _ in range(4 if is_decoder else 3)])
        self.own, self.cross = Attention(), Attention() if is_decoder else None
        self.gate, self.up = torch.nn.Linear(WIDTH, HIDDEN, bias=False), torch.nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = torch.nn.Linear(HIDDEN, WIDTH, bias=False)

    def place(self, length):
        distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        start = 0 if self.is_decoder else (distance > 0).long() * self.number  # @start
        distance = -distance.clamp(max=0) if self.is_decoder else distance.abs()
        exact = self.number // 2
        far = torch.log(distance.clamp(min=1) / exact) / math.log(FARTHEST / exact) * (self.number - exact)
        far = (exact + far.long()).clamp(max=self.number - 1)
        bucket = start + torch.where(distance < exact, distance, far)
        return self.places(bucket).permute(2, 0, 1).unsqueeze(0)  # @places

    def forward(self, x, hidden, memory=None, padded=None):
        h = self.norms[0](x)  # @norm
        x = x + self.own(h, h, self.place(x.shape[1]).masked_fill(hidden, -torch.inf))
        if self.cross is not None:
            h = self.norms[3](x)  # @norm
            x = x + self.cross(h, memory, torch.zeros(padded.shape).masked_fill(padded, -torch.inf))  # @padded
        h = self.norms[1](x)  # @norm
        x = x + self.down(F.gelu(self.gate(h), approximate="tanh") * self.up(h))  # @halves
        return self.norms[2](x)  # @norm @last


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.encoder, self.decoder = Block(False), Block(True)

    def forward(self, source, target):
        padded = (source == 0)[:, None, None, :]
        memory = self.encoder(self.words(source), padded)
        y = self.decoder(self.words(target), torch.ones(TARGET, TARGET).triu(1) > 0, memory, padded)
        return F.linear(y * WIDTH**-0.5, self.words.weight)  # @logits


def compute_reference_loss(network, source, target, labels):
    return F.cross_entropy(network(source, target).flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


class CandidateNorm(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(ops.ones((WIDTH,)), name="weight")

    def construct(self, x: Tensor) -> Tensor:
        return self.weight * (x * ops.rsqrt(ops.square(x).mean(-1, True) + 1e-6))  # @norm


def find_buckets(length: int, number: int, both: bool) -> np.ndarray:
    distance = np.arange(length)[None, :] - np.arange(length)[:, None]
    start = (distance > 0) * number if both else 0  # @side
    distance = np.abs(distance) if both else np.maximum(-distance, 0)
    exact = number // 2
    far = exact + np.log(np.maximum(distance, 1) / exact) / np.log(FARTHEST / exact) * (number - exact)
    return (start + np.where(distance < exact, distance, np.minimum(far, number - 1))).astype(np.int32)


def attend(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    query, key, value = (x.reshape(len(x), -1, HEADS, SIZE).transpose(0, 2, 1, 3) for x in (query, key, value))
    scores = ops.matmul(query, key.swapaxes(-1, -2)) + bias  # @attend
    share = ops.softmax(ops.masked_fill(scores, hidden, -1e9), -1)  # @attend @padded
    return mint.matmul(share, value).transpose(0, 2, 1, 3).reshape(len(query), -1, WIDTH)  # @attend


class CandidateBlock(nn.Cell):
    def __init__(self, length: int, both: bool) -> None:
        super().__init__()
        self.buckets = Tensor(find_buckets(length, BUCKETS // 2 if both else BUCKETS, both))
        self.places = Parameter(ops.zeros((BUCKETS, HEADS)), name="places")
        self.norms = nn.CellList([CandidateNorm() for _ in range(3 if both else 4)])
        self.qkv, self.o = nn.Dense(WIDTH, 3 * WIDTH, has_bias=False), nn.Dense(WIDTH, WIDTH, has_bias=False)
        if not both:
            self.cross_q, self.cross_o = (mint.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
            self.cross_kv = mint.nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.both, self.up = both, nn.Dense(WIDTH, 2 * HIDDEN, has_bias=False)
        self.down = nn.Dense(HIDDEN, WIDTH, has_bias=False)

    def construct(self, x: Tensor, hidden: Tensor, memory=None, padded=None) -> Tensor:
        bias = ops.gather(self.places, self.buckets, 0).transpose(2, 0, 1)  # @places
        x = x + self.o(attend(*ops.split(self.qkv(self.norms[0](x)), WIDTH, axis=-1), hidden, bias))
        if not self.both:
            key, value = ops.split(self.cross_kv(memory), WIDTH, axis=-1)  # @memory
            x = x + self.cross_o(attend(self.cross_q(self.norms[3](x)), key, value, padded))  # @cross
        gate, up = ops.split(self.up(self.norms[1](x)), HIDDEN, axis=-1)  # @halves
        x = x + self.down(ops.gelu(gate, approximate="tanh") * up)  # @halves
        return self.norms[2](x)  # @final


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.encoder, self.decoder = CandidateBlock(SOURCE, True), CandidateBlock(TARGET, False)
        self.future = Tensor(np.triu(np.ones((TARGET, TARGET), bool), 1))

    def construct(self, source: Tensor, target: Tensor) -> Tensor:
        padded = ops.equal(source, 0).reshape(-1, 1, 1, SOURCE)
        memory = self.encoder(self.words(source), padded)
        y = self.decoder(self.words(target), self.future, memory, padded)
        table = self.words.embedding_table
        return ops.matmul(y, table.T) * WIDTH**-0.5  # @logits


def compute_candidate_loss(network, source, target, labels):
    logits = network(source, target).reshape(-1, WORDS)
    return ops.cross_entropy(logits, labels.reshape(-1), ignore_index=IGNORED)


def convert(weights: Weights) -> Weights:
    converted = {name: array for name, array in weights.items() if ".norms." in name or ".down." in name}
    converted["words.embedding_table"] = weights["words.weight"]
    table = {"places": "places", "up.weight": "gate up", "o.weight": "own.o", "qkv.weight": "own.q own.k own.v"}
    cross = {"cross_q.weight": "cross.q", "cross_kv.weight": "cross.k cross.v", "cross_o.weight": "cross.o"}
    for block, names in (("encoder", table), ("decoder", table | cross)):
        for new, old in names.items():
            converted[f"{block}.{new}"] = np.concatenate([weights[f"{block}.{name}.weight"] for name in old.split()])
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(1500 + step)
    source, target = random.integers(1, WORDS, size=(3, SOURCE)), random.integers(1, WORDS, size=(3, TARGET + 1))
    source[1, 6:], source[2, 4:], labels = 0, 0, np.ascontiguousarray(target[:, 1:])
    labels[0, 5:] = IGNORED
    return source, np.ascontiguousarray(target[:, :-1]), labels


FAULTS = (
    Fault("epsilon of the norms", "norm", "1e-6", "1e-4"),
    Fault("no bucket of its own for what follows", "places start", "> 0) * number", "> 0) * 0", edit="side"),
    Fault(
        "encoder without last norm", "last memory", "self.norms[2](x)", "x if self.both else self.norms[2](x)", "final"
    ),
    Fault("logits without their scale", "logits", " * WIDTH**-0.5", ""),
    Fault("scores scaled in the reference", "attend", ", scale=1.0", "", side="reference"),
    Fault("tied embedding detached", "logits", "table.T", "ops.stop_gradient(table).T", is_backward=True),
    Fault(
        "two at once: padding and gate",
        "padded",
        "padded))",
        "Tensor(False)))",
        edit="cross",
        second=("halves", "gate, up =", "up, gate ="),
    ),
)
