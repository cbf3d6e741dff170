"""A translator with additive attention: each side has one of its two GRUs fused, and the other one step by step."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, mint, nn, ops
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from held_out.fault import Fault
from held_out.weight import Weights

FOREIGN, WORDS, EMBED, HIDDEN, SOURCE, TARGET, PAD = 20, 18, 8, 10, 4, 5, 0


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.foreign = torch.nn.Embedding(FOREIGN, EMBED)
        self.words = torch.nn.Embedding(WORDS, EMBED)
        self.encoder = torch.nn.GRU(EMBED, HIDDEN, batch_first=True)
        self.decoder = torch.nn.GRUCell(EMBED, HIDDEN)
        self.query = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.key = torch.nn.Linear(HIDDEN, HIDDEN)
        self.score = torch.nn.Linear(HIDDEN, 1, bias=False)
        self.compose = torch.nn.Linear(2 * HIDDEN, EMBED)
        self.bias = torch.nn.Parameter(torch.zeros(WORDS))

    def forward(self, source, length, inputs):
        packed = pack_padded_sequence(self.foreign(source), length, batch_first=True, enforce_sorted=False)  # @foreign
        packed, last = self.encoder(packed)  # @gates @fresh @blend @hold @recur
        memory, _ = pad_packed_sequence(packed, batch_first=True, total_length=SOURCE)  # @memory
        key = self.key(memory)  # @key
        padding = torch.arange(SOURCE) >= length.unsqueeze(1)
        state, logits = last[0], []
        for word in self.words(inputs).unbind(1):  # @words
            state = self.decoder(word, state)  # @decode
            score = self.score(torch.tanh(key + self.query(state).unsqueeze(1))).squeeze(2)  # @score
            weight = F.softmax(score.masked_fill(padding, float("-inf")), dim=1)  # @mask @attend
            context = torch.bmm(weight.unsqueeze(1), memory).squeeze(1)  # @context
            h = torch.tanh(self.compose(torch.cat([context, state], dim=1)))  # @compose
            logits.append(F.linear(h, self.words.weight, self.bias))  # @head
        return torch.stack(logits, dim=1)  # @head


def compute_reference_loss(network, source, length, target):
    logits = network(source, length, target[:, :-1])  # @shift
    return F.cross_entropy(logits.transpose(1, 2), target[:, 1:], ignore_index=PAD)  # @pick @average


class Encoder(nn.Cell):
    """A GRU whose states stay as they are where the sentence has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Dense(EMBED, 3 * HIDDEN)
        self.recur = nn.Dense(HIDDEN, 3 * HIDDEN)

    def construct(self, x: Tensor, alive: Tensor) -> tuple[Tensor, Tensor]:
        entered = self.enter(x)  # @entered
        h = ops.zeros((x.shape[0], HIDDEN), x.dtype)
        states = []
        for time in range(SOURCE):
            here, now = alive[:, time : time + 1], entered[:, time]
            before = self.recur(h)  # @recur
            both = mint.sigmoid(now[:, : 2 * HIDDEN] + before[:, : 2 * HIDDEN])  # @both
            reset, keep = mint.split(both, HIDDEN, dim=1)  # @gates
            fresh = mint.tanh(now[:, 2 * HIDDEN :] + reset * before[:, 2 * HIDDEN :])  # @fresh
            new = fresh + keep * (h - fresh)  # @blend
            h = here * new + (1 - here) * h  # @hold
            states.append(here * h)  # @memory @stored
        return ops.stack(states, axis=1), h  # @memory


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.foreign = nn.Embedding(FOREIGN, EMBED)
        self.words = Parameter(ops.zeros((WORDS, EMBED)), name="words")
        self.encoder = Encoder()
        self.decoder = nn.GRU(EMBED, HIDDEN, batch_first=True)
        self.query = nn.Dense(HIDDEN, HIDDEN, has_bias=False)
        self.key = nn.Dense(HIDDEN, HIDDEN)
        self.score = Parameter(ops.zeros((HIDDEN,)), name="score")
        self.compose = nn.Dense(2 * HIDDEN, EMBED, activation="tanh")
        self.bias = Parameter(ops.zeros((WORDS,)), name="bias")

    def construct(self, source: Tensor, length: Tensor, inputs: Tensor) -> Tensor:
        alive = ops.arange(SOURCE) < length.expand_dims(1)
        memory, last = self.encoder(self.foreign(source), alive.astype("float32"))  # @foreign
        start = ops.expand_dims(last, 0)  # @start
        states, _ = self.decoder(ops.gather(self.words, inputs, 0), start)  # @words @decode
        met = self.query(states).expand_dims(2) + self.key(memory).expand_dims(1)  # @key @score
        score = (ops.tanh(met) * self.score).sum(-1)  # @score
        score = ops.select(alive.expand_dims(1).expand_as(score), score, ops.full_like(score, -1e9))  # @mask
        context = ops.bmm(ops.softmax(score), memory)  # @attend @context
        h = self.compose(ops.concat((context, states), axis=-1))  # @compose
        return mint.matmul(h, self.words.T) + self.bias  # @head


def compute_candidate_loss(network, source, length, target):
    logits = network(source, length, target[:, :-1])  # @shift
    labels = target[:, 1:]
    mask = (labels != PAD).astype(logits.dtype)
    picked = ops.gather_d(ops.log_softmax(logits), 2, labels.expand_dims(2)).squeeze(2)  # @pick
    return -(picked * mask).sum() / mask.sum()  # @average


def convert(weights: Weights) -> Weights:
    converted = {name: weights[name] for name in ("bias", "query.weight", "key.weight", "key.bias")}
    converted |= {name: weights[name] for name in ("compose.weight", "compose.bias")}
    converted |= {"foreign.embedding_table": weights["foreign.weight"], "words": weights["words.weight"]}
    converted["score"] = weights["score.weight"][0]
    for word in ("weight", "bias"):
        converted[f"encoder.enter.{word}"] = weights[f"encoder.{word}_ih_l0"]
        converted[f"encoder.recur.{word}"] = weights[f"encoder.{word}_hh_l0"]
        converted |= {f"decoder.{word}_{end}_l0": weights[f"decoder.{word}_{end}"] for end in ("ih", "hh")}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(2400 + step)
    length, wanted = np.array([3, 4, 1, 2]), np.array([5, 3, 6, 4])
    source = random.integers(1, FOREIGN, size=(4, SOURCE)) * (np.arange(SOURCE) < length[:, None])
    target = random.integers(2, WORDS, size=(4, TARGET + 1)) * (np.arange(TARGET + 1) < wanted[:, None])
    target[:, 0] = 1
    return source, length, target


FAULTS = (
    Fault("gates swapped", "gates fresh", "reset, keep = mint", "keep, reset = mint"),
    Fault("state runs on in the padding", "hold stored recur", "here * new + (1 - here) * h", "new"),
    Fault(
        "mask of the memory left out",
        "mask attend",
        "ops.select(alive.expand_dims(1).expand_as(score), score, ops.full_like(score, -1e9))",
        "score",
    ),
    Fault("fed with the words that it shall say", "shift words", "target[:, :-1]", "target[:, 1:]"),
    Fault("averaged over the padding, too", "average", "/ mask.sum()", "/ mask.size"),
    Fault(
        "last state detached",
        "start decode",
        "ops.expand_dims(last, 0)",
        "ops.expand_dims(ops.stop_gradient(last), 0)",
        is_backward=True,
    ),
    Fault(
        "softmax of the batch in the reference", "attend", 'float("-inf")), dim=1)', "-1e9), dim=0)", side="reference"
    ),
)
