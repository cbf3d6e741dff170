"""A decoder with rotary positions, grouped queries, RMS norms and a gated MLP; the candidate fuses projections."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

WORDS, WIDTH, HEADS, GROUPS, SIZE, HIDDEN, TIME = 24, 16, 4, 2, 4, 24, 9


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.RMSNorm(WIDTH, eps=1e-6), torch.nn.RMSNorm(WIDTH, eps=1e-6)
        self.query = torch.nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.key = torch.nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.value = torch.nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.out = torch.nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.gate, self.up = (torch.nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(HIDDEN, WIDTH, bias=False)

    def rotate(self, x, cos, sin):
        half = torch.cat([-x[..., SIZE // 2 :], x[..., : SIZE // 2]], dim=-1)  # @half
        return x * cos + half * sin  # @rotate

    def attend(self, x, cos, sin):
        query = self.query(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)  # @query
        key = self.key(x).unflatten(-1, (GROUPS, SIZE)).transpose(1, 2)  # @key
        value = self.value(x).unflatten(-1, (GROUPS, SIZE)).transpose(1, 2)  # @value
        query, key = self.rotate(query, cos, sin), self.rotate(key, cos, sin)
        key = key.repeat_interleave(HEADS // GROUPS, dim=1)  # @repeat
        value = value.repeat_interleave(HEADS // GROUPS, dim=1)  # @repeat
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)  # @scores @scale @mask @softmax
        return self.out(mixed.transpose(1, 2).flatten(2))  # @out

    def forward(self, x, cos, sin):
        x = x + self.attend(self.norm1(x), cos, sin)  # @first @norm
        h = self.norm2(x)  # @norm
        return x + self.down(F.silu(self.gate(h)) * self.up(h))  # @gated @second


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList([Layer(), Layer()])
        self.norm = torch.nn.RMSNorm(WIDTH, eps=1e-6)

    def forward(self, tokens):
        frequency = 10000.0 ** (-torch.arange(0, SIZE, 2) / SIZE)  # @frequency
        angle = torch.outer(torch.arange(TIME).float(), frequency).repeat(1, 2)  # @angle
        cos, sin = angle.cos(), angle.sin()
        x = self.words(tokens)  # @words
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x) @ self.words.weight.T  # @norm @head


def compute_reference_loss(network, tokens, labels):
    return F.cross_entropy(network(tokens).flatten(0, 1), labels.flatten())  # @loss


class Norm(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(ops.ones((WIDTH,)), name="weight")

    def construct(self, x: Tensor) -> Tensor:
        size = ops.rsqrt(ops.pow(x, 2).mean(-1, keep_dims=True) + 1e-6)  # @norm
        return self.weight * (x * size)  # @norm


class CandidateLayer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.qkv = nn.Dense(WIDTH, (HEADS + 2 * GROUPS) * SIZE, has_bias=False)
        self.out = nn.Dense(HEADS * SIZE, WIDTH, has_bias=False)
        self.gate_up = mint.nn.Linear(WIDTH, 2 * HIDDEN, bias=False)
        self.down = mint.nn.Linear(HIDDEN, WIDTH, bias=False)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = ops.chunk(x, 2, axis=-1)  # @half
        half = ops.cat((-second, first), axis=-1)  # @half
        return x * cos + half * sin  # @rotate

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch = x.shape[0]
        qkv = self.qkv(x).reshape(batch, TIME, HEADS + 2 * GROUPS, SIZE).swapaxes(1, 2)  # @query @key @value
        query = qkv[:, :HEADS]
        key = qkv[:, HEADS : HEADS + GROUPS]  # @key
        value = qkv[:, HEADS + GROUPS :]  # @value
        query, key = self.rotate(query, cos, sin), self.rotate(key, cos, sin)  # @rotated
        key = ops.repeat_interleave(key, HEADS // GROUPS, 1)  # @repeat
        value = ops.repeat_interleave(value, HEADS // GROUPS, 1)  # @repeat
        scores = ops.bmm(query, key.swapaxes(-1, -2)) * SIZE**-0.5  # @scores @scale
        future = Tensor(np.triu(np.ones((TIME, TIME), bool), k=1))  # @future
        scores = ops.masked_fill(scores, future, -1e9)  # @mask
        mixed = mint.matmul(ops.softmax(scores, -1), value)  # @softmax
        return self.out(mixed.swapaxes(1, 2).reshape(batch, TIME, -1))  # @out

    def construct(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x), cos, sin)  # @first
        gate, up = mint.split(self.gate_up(self.norm2(x)), HIDDEN, dim=-1)  # @gated
        return x + self.down(ops.silu(gate) * up)  # @gated @second


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.words = Parameter(ops.zeros((WORDS, WIDTH)), name="words")
        self.layers = nn.CellList([CandidateLayer(), CandidateLayer()])
        self.norm = Norm()
        frequency = 10000.0 ** (-np.arange(0, SIZE, 2) / SIZE)  # @base
        angle = np.tile(np.outer(np.arange(TIME), frequency), 2).astype(np.float32)  # @positions
        self.cos, self.sin = Tensor(np.cos(angle)), Tensor(np.sin(angle))

    def construct(self, tokens: Tensor) -> Tensor:
        x = ops.gather(self.words, tokens, 0)  # @words
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return ops.matmul(self.norm(x), self.words.T)  # @head


def compute_candidate_loss(network, tokens, labels):
    return ops.cross_entropy(network(tokens).reshape(-1, WORDS), labels.reshape(-1))  # @loss


def convert(weights: Weights) -> Weights:
    converted = {
        name: array for name, array in weights.items() if "norm" in name or ".out." in name or ".down." in name
    }
    converted["words"] = weights["words.weight"]
    for layer in ("layers.0", "layers.1"):
        parts = [weights[f"{layer}.{part}.weight"] for part in ("query", "key", "value")]
        converted[f"{layer}.qkv.weight"] = np.concatenate(parts)
        converted[f"{layer}.gate_up.weight"] = np.concatenate(
            [weights[f"{layer}.{part}.weight"] for part in ("gate", "up")]
        )
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    tokens = np.random.default_rng(900 + step).integers(WORDS, size=(2, TIME + 1))
    return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])


FAULTS = (
    Fault("base of the rotation", "frequency angle rotate", "10000.0", "1000.0", edit="base"),
    Fault(
        "positions from one",
        "angle rotate",
        "np.arange(TIME)",
        "np.arange(1, TIME + 1)",
        edit="positions",
        has_effect=False,
    ),
    Fault(
        "groups tiled, not repeated",
        "repeat",
        "value = ops.repeat_interleave(value, HEADS // GROUPS, 1)",
        "value = ops.tile(value, (1, HEADS // GROUPS, 1, 1))",
    ),
    Fault("mask lets one token of the future in", "mask softmax", "k=1", "k=2", edit="future"),
    Fault("scale of the whole width", "scale", "SIZE**-0.5", "WIDTH**-0.5"),
    Fault("rotation the other way", "half", "(-second, first)", "(second, -first)"),
    Fault("gate and up swapped", "gated", "gate, up = mint", "up, gate = mint"),
    Fault("epsilon of the norm", "norm first", "1e-6", "1e-2"),
    Fault(
        "value detached",
        "softmax repeat value",
        "value = ops.repeat_interleave(value",
        "value = ops.repeat_interleave(ops.stop_gradient(value)",
        edit="repeat",
        is_backward=True,
    ),
    Fault("key not rotated", "rotate rotated repeat scores", "self.rotate(key, cos, sin)", "key", edit="rotated"),
    Fault(
        "two at once: scale and gate",
        "scale",
        "SIZE**-0.5",
        "WIDTH**-0.5",
        second=("gated", "gate, up = mint", "up, gate = mint"),
    ),
)
