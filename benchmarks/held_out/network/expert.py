"""A mixture of experts: each expert takes its own tokens in one, all tokens with a mask in the other."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

WORDS, WIDTH, HIDDEN, EXPERTS, CHOSEN = 20, 8, 12, 4, 2


class Expert(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, HIDDEN), torch.nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))  # @expert


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.gate = torch.nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = torch.nn.ModuleList([Expert() for _ in range(EXPERTS)])
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.words(tokens).flatten(0, 1)  # @words
        share = F.softmax(self.gate(x), dim=-1)  # @share
        weight, chosen = torch.topk(share, CHOSEN, dim=-1)  # @topk
        weight = weight / weight.sum(dim=-1, keepdim=True)  # @renormalize
        total = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, column = torch.where(chosen == number)
            part = expert(x[row]) * weight[row, column].unsqueeze(-1)  # @part
            total = total.index_add(0, row, part)  # @total
        load = F.one_hot(chosen, EXPERTS).float().sum(dim=1).mean(dim=0)  # @load
        balance = EXPERTS * (load * share.mean(dim=0)).sum()  # @balance
        return self.head(x + total), balance  # @head


def compute_reference_loss(network, tokens, labels):
    logits, balance = network(tokens)
    return F.cross_entropy(logits, labels.flatten()) + 0.01 * balance  # @loss


class CandidateExpert(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Dense(WIDTH, HIDDEN), mint.nn.Linear(HIDDEN, WIDTH)

    def construct(self, x: Tensor) -> Tensor:
        return self.down(ops.silu(self.up(x)))  # @expert


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.gate = Parameter(ops.zeros((WIDTH, EXPERTS)), name="gate")
        self.experts = nn.CellList([CandidateExpert() for _ in range(EXPERTS)])
        self.head = nn.Dense(WIDTH, WORDS)

    def construct(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.words(tokens).reshape(-1, WIDTH)  # @words
        logits = ops.matmul(x, self.gate)  # @share
        share = ops.softmax(logits, -1)  # @share
        weight, chosen = ops.topk(share, CHOSEN)  # @topk
        weight = weight / weight.sum(-1, keepdims=True)  # @renormalize
        chosen = ops.one_hot(chosen, EXPERTS, Tensor(1.0), Tensor(0.0))  # @chosen
        weights = (weight.expand_dims(-1) * chosen).sum(1)  # @weights
        total = ops.zeros_like(x)
        for number, expert in enumerate(self.experts):
            part = expert(x) * weights[:, number : number + 1]  # @part
            total = total + part  # @total
        load = chosen.sum(1).mean(0)  # @load
        balance = EXPERTS * ops.reduce_sum(load * ops.mean(share, 0))  # @balance
        return self.head(x + total), balance  # @head


def compute_candidate_loss(network, tokens, labels):
    logits, balance = network(tokens)
    return ops.cross_entropy(logits, labels.reshape(-1)) + 0.01 * balance  # @loss


def convert(weights: Weights) -> Weights:
    converted = dict(weights)
    converted["words.embedding_table"] = converted.pop("words.weight")
    converted["gate"] = converted.pop("gate.weight").T
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(800 + step)
    tokens = random.integers(WORDS, size=(3, 9))
    return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])


FAULTS = (
    Fault("weights not renormalized", "renormalize part weights", "weight / weight.sum(-1, keepdims=True)", "weight"),
    Fault("one expert a token", "topk", "share, CHOSEN", "share, 1"),
    Fault("gelu for silu", "expert", "ops.silu", "ops.gelu"),
    Fault("softmax over the tokens", "share", "ops.softmax(logits, -1)", "ops.softmax(logits, 0)"),
    Fault("balance without the number of experts", "balance loss", "EXPERTS * ops.reduce_sum", "ops.reduce_sum"),
    Fault("missing residual", "head", "self.head(x + total)", "self.head(total)"),
    Fault(
        "weights detached",
        "part renormalize",
        "expert(x) * weights",
        "expert(x) * ops.stop_gradient(weights)",
        is_backward=True,
    ),
    Fault("first expert for all", "part expert", "expert(x) *", "self.experts[0](x) *"),
    Fault(
        "weights detached in the reference",
        "part",
        "* weight[row, column]",
        "* weight.detach()[row, column]",
        side="reference",
        is_backward=True,
    ),
)
