"""A conditional random field over tags: the sum over all paths by a recursion in log space, less the right path."""

from __future__ import annotations

import numpy as np
import torch
from mindspore import Parameter, Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

WORDS, WIDTH, TAGS, TIME = 22, 10, 5, 7


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.conv = torch.nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.emit = torch.nn.Linear(WIDTH, TAGS)
        self.start, self.end = torch.nn.Parameter(torch.zeros(TAGS)), torch.nn.Parameter(torch.zeros(TAGS))
        self.transition = torch.nn.Parameter(torch.zeros(TAGS, TAGS))

    def forward(self, tokens):
        x = self.words(tokens).transpose(1, 2)  # @words
        h = torch.tanh(self.conv(x))  # @conv
        return self.emit(h.transpose(1, 2))  # @emit


def sum_paths(network, emission, mask):
    alpha = network.start + emission[:, 0]  # @begin
    for time in range(1, TIME):
        inner = alpha.unsqueeze(2) + network.transition + emission[:, time].unsqueeze(1)  # @inner
        longer = torch.logsumexp(inner, dim=1)  # @recursion
        alpha = torch.where(mask[:, time].unsqueeze(1), longer, alpha)  # @mask
    return torch.logsumexp(alpha + network.end, dim=1)  # @finish


def score_path(network, emission, tags, mask):
    number = torch.arange(len(tags))
    score = network.start[tags[:, 0]] + emission[number, 0, tags[:, 0]]  # @path_begin
    for time in range(1, TIME):
        step = network.transition[tags[:, time - 1], tags[:, time]]  # @path_transition
        step = step + emission[number, time, tags[:, time]]  # @path_step
        score = score + step * mask[:, time]  # @path_mask
    last = tags[number, mask.sum(dim=1) - 1]
    return score + network.end[last]  # @path_end


def compute_reference_loss(network, tokens, tags, mask):
    emission = network(tokens)
    right = score_path(network, emission, tags, mask)
    loss = sum_paths(network, emission, mask) - right  # @difference
    return loss.mean()  # @loss


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, pad_mode="pad", padding=1, has_bias=True)
        self.emit = nn.Dense(WIDTH, TAGS)
        self.start = Parameter(ops.zeros((TAGS,)), name="start")
        self.end = Parameter(ops.zeros((TAGS,)), name="end")
        self.transition = Parameter(ops.zeros((TAGS, TAGS)), name="transition")

    def construct(self, tokens: Tensor) -> Tensor:
        x = ops.transpose(self.words(tokens), (0, 2, 1))  # @words
        h = mint.tanh(self.conv(x))  # @conv
        return self.emit(h.swapaxes(1, 2))  # @emit


def sum_candidate_paths(network, emission, mask):
    alpha = network.start + emission[:, 0]  # @begin
    for time in range(1, TIME):
        inner = alpha.expand_dims(2) + network.transition  # @inner
        longer = ops.logsumexp(inner, 1) + emission[:, time]  # @recursion
        kept = mask[:, time : time + 1]  # @kept
        alpha = longer * kept + alpha * (1 - kept)  # @mask
    return ops.logsumexp(alpha + network.end, 1)  # @finish


def score_candidate_path(network, emission, tags, mask):
    chosen = ops.one_hot(tags, TAGS, Tensor(1.0), Tensor(0.0))
    emitted = (emission * chosen).sum(-1)  # @path_step @path_begin
    flat = tags[:, :-1] * TAGS + tags[:, 1:]  # @flat
    moved = ops.gather(network.transition.reshape(-1), flat, 0)  # @path_transition
    begun = ops.gather(network.start, tags[:, 0], 0)  # @path_begin
    score = begun + (emitted * mask).sum(-1) + (moved * mask[:, 1:]).sum(-1)  # @path_mask
    last = ops.gather_elements(tags, 1, mask.sum(-1, keepdims=True).astype(tags.dtype) - 1).squeeze(-1)  # @last
    return score + ops.gather(network.end, last, 0)  # @path_end


def compute_candidate_loss(network, tokens, tags, mask):
    emission = network(tokens)
    mask = mask.astype(emission.dtype)
    right = score_candidate_path(network, emission, tags, mask)
    loss = sum_candidate_paths(network, emission, mask) - right  # @difference
    return mint.mean(loss)  # @loss


def convert(weights: Weights) -> Weights:
    converted = dict(weights)
    converted["words.embedding_table"] = converted.pop("words.weight")
    converted["conv.weight"] = converted["conv.weight"][:, :, None, :]
    converted["transition"] = weights["transition"]  # @load
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(1000 + step)
    length = np.array([7, 5, 6, 3])
    tokens, tags = random.integers(WORDS, size=(4, TIME)), random.integers(TAGS, size=(4, TIME))
    return tokens, tags, np.arange(TIME) < length[:, None]


FAULTS = (
    Fault("transitions transposed", "inner", "network.transition", "network.transition.T"),
    Fault("start forgotten", "begin inner", "network.start + emission[:, 0]", "emission[:, 0]"),
    Fault("summed over the next tag", "recursion", "ops.logsumexp(inner, 1)", "ops.logsumexp(inner, 2)"),
    Fault("mask one too early", "mask kept", "mask[:, time : time + 1]", "mask[:, time - 1 : time]", edit="kept"),
    Fault("mask of transitions off by one", "path_mask", "mask[:, 1:]", "mask[:, :-1]"),
    Fault(
        "end of the padded path",
        "path_end last",
        "mask.sum(-1, keepdims=True).astype(tags.dtype) - 1",
        "ops.full_like(tags[:, :1], TIME - 1)",
        edit="last",
    ),
    Fault("summed in the place of averaged", "loss", "mint.mean(loss)", "mint.sum(loss)"),
    Fault(
        "transposed weight",
        "inner path_transition",
        'weights["transition"]',
        'weights["transition"].T',
        edit="load",
        parameter="transition",
    ),
    Fault(
        "emission scores detached on the path",
        "path_step path_mask difference",
        "(emission * chosen)",
        "(ops.stop_gradient(emission) * chosen)",
        is_backward=True,
    ),
    Fault("relu for tanh in the reference", "conv", "torch.tanh(", "torch.relu(", side="reference"),
)
