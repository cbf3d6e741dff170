"""A decoder with linear biases, shared keys and low-rank updates: all at once, or a prompt and then a cache."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

WORDS, WIDTH, HEADS, SHARED, SIZE, HIDDEN, RANK, ALPHA = 21, 12, 4, 2, 3, 16, 2, 4
LAYERS, TIME, PROMPT = 2, 9, 5
GROUP = HEADS // SHARED
SLOPES = 2.0 ** (-2.0 * np.arange(1, HEADS + 1))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.RMSNorm(WIDTH, eps=1e-6), torch.nn.RMSNorm(WIDTH, eps=1e-6)
        self.query = torch.nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.low = torch.nn.Linear(WIDTH, RANK, bias=False)
        self.high = torch.nn.Linear(RANK, HEADS * SIZE, bias=False)
        self.key, self.value = (torch.nn.Linear(WIDTH, SHARED * SIZE, bias=False) for _ in range(2))
        self.out = torch.nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.gate, self.up = (torch.nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(HIDDEN, WIDTH, bias=False)

    def attend(self, x, bias):
        batch, time, _ = x.shape
        q = self.query(x) + self.high(self.low(x)) * (ALPHA / RANK)  # @query @merged
        q = q.view(batch, time, HEADS, SIZE).transpose(1, 2)  # @heads
        k, v = (layer(x).view(batch, time, SHARED, SIZE).transpose(1, 2) for layer in (self.key, self.value))
        k, v = k.repeat_interleave(GROUP, dim=1), v.repeat_interleave(GROUP, dim=1)  # @shared @keys
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)  # @score @biased @chance @context
        return self.out(y.transpose(1, 2).reshape(batch, time, -1))  # @merge @out

    def forward(self, x, bias):
        x = x + self.attend(self.norm1(x), bias)  # @norm1 @first
        h = self.norm2(x)  # @norm2
        return x + self.down(F.silu(self.gate(h)) * self.up(h))  # @halves @gated @second


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = torch.nn.RMSNorm(WIDTH, eps=1e-6)

    def forward(self, tokens):
        places = torch.arange(TIME)
        distance = places[None, :] - places[:, None]
        slopes = torch.tensor(SLOPES, dtype=torch.float32).view(-1, 1, 1)
        bias = (slopes * distance).masked_fill(distance > 0, float("-inf"))  # @bias
        x = self.words(tokens) * WIDTH**0.5  # @words @scaled
        for layer in self.layers:
            x = layer(x, bias)
        return F.linear(self.norm(x), self.words.weight)  # @norm @tied


def compute_reference_loss(network, tokens, labels, mask):
    logits = network(tokens)
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")  # @losses
    loss = (losses * mask.flatten()).sum() / mask.sum()  # @average
    return loss + 0.01 * torch.logsumexp(logits, dim=-1).pow(2).mean()  # @size @loss


class RootMean(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.scale = ms.Parameter(ops.ones((WIDTH,)), name="scale")

    def construct(self, x):
        return x * ops.rsqrt(ops.mean(x * x, -1, True) + 1e-6) * self.scale  # @norm1 @norm2 @norm


class Layer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = RootMean(), RootMean()
        self.joined = nn.Dense(WIDTH, (HEADS + 2 * SHARED) * SIZE, has_bias=False)
        self.low = ms.Parameter(ops.zeros((RANK, WIDTH)), name="low")
        self.high = ms.Parameter(ops.zeros((HEADS * SIZE, RANK)), name="high")
        self.out = nn.Dense(HEADS * SIZE, WIDTH, has_bias=False)
        self.wide = nn.Dense(WIDTH, 2 * HIDDEN, has_bias=False)
        self.down = nn.Dense(HIDDEN, WIDTH, has_bias=False)

    def construct(self, x, bias, cache):
        h = self.norm1(x)
        batch, time, _ = h.shape
        sizes = [HEADS * SIZE, SHARED * SIZE, SHARED * SIZE]
        q, k, v = ops.split(self.joined(h), sizes, axis=-1)  # @query
        update = ops.matmul(self.high, self.low) * (ALPHA / RANK)  # @merged
        q = q + ops.matmul(h, update.T)  # @query @merged
        q = q.reshape(batch, time, SHARED, GROUP, SIZE).transpose(0, 2, 3, 1, 4)  # @heads
        k, v = (part.reshape(batch, time, SHARED, 1, SIZE).transpose(0, 2, 3, 1, 4) for part in (k, v))  # @shared
        if cache is not None:
            k, v = ops.cat((cache[0], k), axis=3), ops.cat((cache[1], v), axis=3)  # @keys
        score = ops.matmul(q, k.swapaxes(-1, -2)) / SIZE**0.5 + bias  # @score @biased
        y = ops.matmul(ops.softmax(score), v)  # @chance @context
        x = x + self.out(y.transpose(0, 3, 1, 2, 4).reshape(batch, time, -1))  # @merge @out @first
        gate, up = mint.chunk(self.wide(self.norm2(x)), 2, dim=-1)  # @halves
        return x + self.down(gate * ops.sigmoid(gate) * up), (k, v)  # @gated @second


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.words = ms.Parameter(ops.zeros((WORDS, WIDTH)), name="words")
        self.layers = nn.CellList([Layer() for _ in range(LAYERS)])
        self.norm = RootMean()
        self.slopes = ms.Tensor(SLOPES.reshape(SHARED, GROUP, 1, 1), ms.float32)  # @table

    def say(self, tokens, past, caches):
        """The next part of a text, and what is kept of it."""
        places = ops.arange(past, past + tokens.shape[1])  # @places
        distance = ops.arange(past + tokens.shape[1]) - places.expand_dims(1)
        bias = self.slopes * distance.astype("float32") + (distance > 0).astype("float32") * -1e9  # @bias
        x = ops.gather(self.words, tokens, 0) * WIDTH**0.5  # @words @scaled
        kept = []
        for layer, cache in zip(self.layers, caches, strict=True):
            x, cache = layer(x, bias, cache)
            kept.append(cache)
        return ops.matmul(self.norm(x), self.words.T), kept  # @norm @tied

    def construct(self, tokens):
        prompt, caches = self.say(tokens[:, :PROMPT], 0, [None] * LAYERS)
        answer, _ = self.say(tokens[:, PROMPT:], PROMPT, caches)  # @answer
        return ops.cat((prompt, answer), axis=1)


def compute_candidate_loss(network, tokens, labels, mask):
    logits = network(tokens)
    size = ops.logsumexp(logits, -1)  # @size
    picked = (ops.one_hot(labels, WORDS).astype(logits.dtype) * logits).sum(-1)  # @losses
    loss = ((size - picked) * mask).sum() / mask.sum()  # @losses @average
    return loss + 0.01 * ops.square(size).mean()  # @loss


def convert(weights: Weights) -> Weights:
    converted = {"words": weights["words.weight"], "norm.scale": weights["norm.weight"]}
    for number in range(LAYERS):
        old = {name.split(".", 2)[2]: array for name, array in weights.items() if name.startswith(f"layers.{number}.")}
        new = {f"{name}.scale": old[f"{name}.weight"] for name in ("norm1", "norm2")}
        new |= {"low": old["low.weight"], "high": old["high.weight"]}
        new["joined.weight"] = np.concatenate([old[f"{name}.weight"] for name in ("query", "key", "value")])
        new["wide.weight"] = np.concatenate([old["gate.weight"], old["up.weight"]])
        new |= {f"{name}.weight": old[f"{name}.weight"] for name in ("out", "down")}
        converted |= {f"layers.{number}.{name}": array for name, array in new.items()}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    text = np.random.default_rng(3900 + step).integers(WORDS, size=(2, TIME + 1))
    mask = np.broadcast_to(np.arange(TIME) >= 2, (2, TIME)).astype(np.float32)
    return text[:, :-1].copy(), text[:, 1:].copy(), mask


FAULTS = (
    Fault(
        "second part starts at the first place",
        "bias places",
        "ops.arange(past, past + tokens.shape[1])",
        "ops.arange(tokens.shape[1])",
        edit="places",
    ),
    Fault(
        "heads grouped the other way",
        "heads score",
        "SHARED, GROUP, SIZE).transpose(0, 2, 3, 1, 4)",
        "GROUP, SHARED, SIZE).transpose(0, 3, 2, 1, 4)",
    ),
    Fault("update not scaled", "merged", " * (ALPHA / RANK)", ""),
    Fault(
        "cache detached",
        "keys",
        "ops.cat((cache[0], k), axis=3), ops.cat((cache[1], v), axis=3)",
        "ops.cat((ops.stop_gradient(cache[0]), k), axis=3), ops.cat((ops.stop_gradient(cache[1]), v), axis=3)",
        is_backward=True,
    ),
    Fault("reference sees one place too many", "bias", "distance > 0", "distance > 1", side="reference"),
    Fault(
        "gate and up swapped, and averaged over all places",
        "halves gated",
        "gate, up = mint.chunk",
        "up, gate = mint.chunk",
        second=("average", "/ mask.sum()", "/ mask.size"),
    ),
)
