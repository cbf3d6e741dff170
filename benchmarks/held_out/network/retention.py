"""Retention with a state that goes on from step to step: all pairs at once in one, chunks in the other."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

WORDS, WIDTH, HEADS, SIZE, TIME, CHUNK = 22, 12, 3, 4, 12, 4
RATES = 1 - 2.0 ** (-1 - np.arange(HEADS))


class Retention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.gate, self.out = (
            torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(5)
        )
        self.norm = torch.nn.GroupNorm(HEADS, WIDTH)
        self.state = None

    def forward(self, x):
        batch, time, _ = x.shape
        q, k, v = (
            layer(x).view(batch, time, HEADS, SIZE).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        k = k * SIZE**-0.5  # @scale
        rates = torch.tensor(RATES, dtype=torch.float32).view(HEADS, 1, 1)
        places = torch.arange(time)
        gaps = (places[:, None] - places[None, :]).float()
        decay = torch.where(gaps >= 0, rates ** gaps.clamp(min=0), 0.0)  # @mask
        y = (q @ k.transpose(-1, -2) * decay) @ v  # @mask @earlier @pairs @parallel
        fading = rates ** (places.view(-1, 1) + 1)
        if self.state is not None:
            y = y + fading * (q @ self.state)  # @earlier @carried
        kept = k * rates ** (time - 1 - places.view(-1, 1))
        state = kept.transpose(-1, -2) @ v
        if self.state is not None:
            state = state + rates**time * self.state  # @carried
        self.state = state.detach()
        y = self.norm(y.transpose(1, 2).reshape(batch * time, WIDTH)).view(batch, time, WIDTH)  # @norm
        return self.out(F.silu(self.gate(x)) * y)  # @gate


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.before = torch.nn.LayerNorm(WIDTH)
        self.retention = Retention()
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.words(tokens)
        x = x + self.retention(self.before(x))
        return self.head(x)


def compute_reference_loss(network, tokens, labels):
    return F.cross_entropy(network(tokens).transpose(1, 2), labels)


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.before = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.project = nn.Dense(WIDTH, 4 * WIDTH, has_bias=False)
        self.norm_gamma = ms.Parameter(ops.ones((HEADS, 1, SIZE)), name="norm_gamma")
        self.norm_beta = ms.Parameter(ops.zeros((HEADS, 1, SIZE)), name="norm_beta")
        self.out = nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.head = nn.Dense(WIDTH, WORDS)
        self.state = None
        places = np.arange(CHUNK)
        rates = RATES.reshape(HEADS, 1, 1)
        inner = np.tril(rates ** np.abs(places[:, None] - places[None, :]))
        self.inner = ms.Tensor(inner, ms.float32)
        self.fading = ms.Tensor(rates ** (places[:, None] + 1), ms.float32)  # @constant
        self.kept = ms.Tensor(rates ** (CHUNK - 1 - places[:, None]), ms.float32)
        self.passed = ms.Tensor(rates**CHUNK, ms.float32)

    def retain(self, q: ms.Tensor, k: ms.Tensor, v: ms.Tensor) -> ms.Tensor:
        state = self.state
        outputs = []
        for start in range(0, TIME, CHUNK):
            one_q, one_k, one_v = (x[:, :, start : start + CHUNK] for x in (q, k, v))  # @cut
            scores = ops.matmul(one_q, one_k.swapaxes(2, 3)) * self.inner  # @pairs @mask
            y = ops.matmul(scores, one_v)
            if state is not None:
                y = y + ops.matmul(one_q, state) * self.fading  # @earlier @carried
            entry = ops.matmul((one_k * self.kept).swapaxes(2, 3), one_v)  # @entry
            state = entry if state is None else entry + self.passed * state  # @passed @carried
            outputs.append(y)
        self.state = ops.stop_gradient(state)  # @store
        return ops.cat(outputs, axis=2)

    def construct(self, tokens: ms.Tensor) -> ms.Tensor:
        x = self.words(tokens)
        joined = self.project(self.before(x))
        parts = joined.reshape(len(x), TIME, 4, HEADS, SIZE).transpose(2, 0, 3, 1, 4)
        q, k, v, gate = parts[0], parts[1], parts[2], parts[3]
        y = self.retain(q, k * SIZE**-0.5, v)  # @scale
        y = y - mint.mean(y, -1, True)  # @norm
        y = y / ops.sqrt(mint.mean(ops.square(y), dim=-1, keepdim=True) + 1e-5)  # @norm
        y = y * self.norm_gamma + self.norm_beta  # @norm
        y = (gate * ops.sigmoid(gate) * y).transpose(0, 2, 1, 3).reshape(x.shape)  # @gate
        return self.head(x + self.out(y))


def compute_candidate_loss(network, tokens, labels):
    return ops.cross_entropy(network(tokens).swapaxes(1, 2), labels)


def convert(weights: Weights) -> Weights:
    converted = {name: weights[name] for name in ("head.weight", "head.bias")}
    converted["words.embedding_table"] = weights["words.weight"]
    converted["before.gamma"], converted["before.beta"] = weights["before.weight"], weights["before.bias"]
    converted["out.weight"] = weights["retention.out.weight"]
    parts = [weights[f"retention.{name}.weight"] for name in ("query", "key", "value", "gate")]
    converted["project.weight"] = np.concatenate(parts)
    for old, new in (("weight", "gamma"), ("bias", "beta")):
        converted[f"norm_{new}"] = weights[f"retention.norm.{old}"].reshape(HEADS, 1, SIZE)
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    """One long text, cut in steps."""
    text = np.random.default_rng(1600).integers(WORDS, size=(2, 10 * TIME + 1))
    start = step * TIME
    return text[:, start : start + TIME].copy(), text[:, start + 1 : start + TIME + 1].copy()


FAULTS = (
    Fault("earlier text fades a place too late", "earlier", "[:, None] + 1)", "[:, None])", edit="constant"),
    Fault("keys without their scale", "scale cut pairs", "k * SIZE**-0.5", "k"),
    Fault("epsilon of the norm", "norm", "1e-5", "1e-3"),
    Fault("sigmoid in the gate", "gate", "gate * ops.sigmoid(gate)", "ops.sigmoid(gate)"),
    Fault("state not carried on", "carried", "ops.stop_gradient(state)", "None", edit="store", steps=2, first_step=1),
    Fault(
        "state detached between the chunks",
        "passed entry parallel",
        "self.passed * state",
        "self.passed * ops.stop_gradient(state)",
        is_backward=True,
    ),
    Fault(
        "reference sees what follows",
        "mask",
        "torch.where(gaps >= 0, rates ** gaps.clamp(min=0), 0.0)",
        "rates ** gaps.abs()",
        side="reference",
    ),
)
