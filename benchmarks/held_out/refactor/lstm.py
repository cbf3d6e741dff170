"""Tags by a packed recurrence both ways and one that goes on from step to step; cells by hand after the refactor."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from held_out.fault import Fault
from held_out.weight import Weights

WORDS, EMBED, HIDDEN, STATE, TAGS, KINDS, TIME, BATCH = 17, 10, 8, 9, 6, 3, 6, 4
PART, CLIP, IGNORED = 0.5, 0.3, -1


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, EMBED)
        self.lstm = nn.LSTM(EMBED, HIDDEN, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(2 * HIDDEN, STATE, batch_first=True)
        self.tag, self.kind = nn.Linear(STATE, TAGS), nn.Linear(2 * HIDDEN, KINDS)
        self.register_buffer("state", torch.zeros(1, BATCH, STATE), persistent=False)

    def forward(self, tokens, lengths):
        x = self.embedding(tokens)  # @embedded
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)  # @packed
        packed, (hidden, _) = self.lstm(packed)  # @entered @repeated @gates @cell @output @order @kept
        x, _ = pad_packed_sequence(packed, batch_first=True, total_length=TIME)  # @unpacked
        y, state = self.gru(x, self.state.to(x.dtype))  # @reset @new @moved @carried
        self.state = state.detach()
        sentence = torch.cat((hidden[0], hidden[1]), dim=1)  # @sentence
        return self.tag(y), self.kind(sentence)  # @tagged @kinds


def compute_reference_loss(network, tokens, lengths, tags, kinds):
    tagged, found = network(tokens, lengths)
    tag_loss = F.cross_entropy(tagged.float().flatten(0, 1), tags.flatten(), ignore_index=IGNORED)  # @errors @mean
    return tag_loss + PART * F.cross_entropy(found.float(), kinds)  # @kind_loss @loss


def finish_reference(network):
    torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP)  # @size @clipped


class Direction(nn.Module):
    """One way through a batch; where a sentence has no word, nothing moves."""

    def __init__(self, is_back: bool) -> None:
        super().__init__()
        self.is_back = is_back
        self.enter, self.again = nn.Linear(EMBED, 4 * HIDDEN), nn.Linear(HIDDEN, 4 * HIDDEN)

    def forward(self, x: Tensor, is_word: Tensor) -> tuple[Tensor, Tensor]:
        entered = self.enter(x).unbind(1)  # @entered
        h = c = torch.zeros_like(entered[0][:, :HIDDEN])
        outputs = [h] * TIME
        for time in reversed(range(TIME)) if self.is_back else range(TIME):  # @way
            gates = entered[time] + self.again(h)  # @repeated
            i, f, g, o = gates.chunk(4, dim=1)  # @order
            new_c = f.sigmoid() * c + i.sigmoid() * g.tanh()  # @gates @cell
            new_h = o.sigmoid() * new_c.tanh()  # @gates @output
            valid = is_word[:, time, None]
            c = torch.where(valid, new_c, c)  # @kept
            h = torch.where(valid, new_h, h)  # @kept @kept_output
            outputs[time] = h * valid  # @unpacked
        return torch.stack(outputs, dim=1), h  # @unpacked


class Candidate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, EMBED)
        self.ways = nn.ModuleList([Direction(False), Direction(True)])
        self.w_ih, self.b_ih = nn.Parameter(torch.zeros(3 * STATE, 2 * HIDDEN)), nn.Parameter(torch.zeros(3 * STATE))
        self.w_hh, self.b_hh = nn.Parameter(torch.zeros(3 * STATE, STATE)), nn.Parameter(torch.zeros(3 * STATE))
        self.tag, self.kind = nn.Linear(STATE, TAGS), nn.Linear(2 * HIDDEN, KINDS)
        self.register_buffer("h", torch.zeros(BATCH, STATE), persistent=False)

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        own = torch.addmm(self.b_hh, h, self.w_hh.t())  # @reset @new
        reset, update = (x + own)[:, : 2 * STATE].sigmoid().chunk(2, dim=1)  # @reset @update
        new = torch.tanh(x[:, 2 * STATE :] + reset * own[:, 2 * STATE :])  # @new
        return torch.lerp(new, h, update)  # @moved

    def forward(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        is_word = torch.arange(TIME) < lengths[:, None]  # @packed
        x = self.words(tokens)  # @embedded
        (ahead, last), (back, first) = (way(x, is_word) for way in self.ways)
        x = F.linear(torch.cat((ahead, back), dim=-1), self.w_ih, self.b_ih)  # @reset @new
        states, h = [], self.h.to(x.dtype)  # @carried
        for one in x.unbind(1):
            h = self.step(one, h)
            states.append(h)
        self.h = h.detach()  # @remembered
        sentence = torch.cat((last, first), dim=1)  # @sentence
        return self.tag(torch.stack(states, dim=1)), self.kind(sentence)  # @tagged @kinds


def compute_candidate_loss(network, tokens, lengths, tags, kinds):
    tagged, found = network(tokens, lengths)
    is_word = tags != IGNORED
    errors = F.cross_entropy(tagged[is_word].float(), tags[is_word], reduction="none")  # @errors
    tag_loss = errors.sum() / is_word.sum()  # @mean
    return tag_loss + PART * F.nll_loss(found.float().log_softmax(1), kinds)  # @kind_loss @loss


def finish_candidate(network):
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    size = torch.stack([gradient.float().square().sum() for gradient in gradients]).sum().sqrt()  # @size
    for gradient in gradients:
        gradient.mul_((CLIP / (size + 1e-6)).clamp(max=1.0))  # @clipped


def convert(weights: Weights) -> Weights:
    converted = {"words.weight": weights["embedding.weight"]}
    for word in ("weight", "bias"):
        converted |= {f"{name}.{word}": weights[f"{name}.{word}"] for name in ("tag", "kind")}
        for number, end in enumerate(("l0", "l0_reverse")):
            converted[f"ways.{number}.enter.{word}"] = weights[f"lstm.{word}_ih_{end}"]
            converted[f"ways.{number}.again.{word}"] = weights[f"lstm.{word}_hh_{end}"]
    converted |= {"w_ih": weights["gru.weight_ih_l0"], "w_hh": weights["gru.weight_hh_l0"]}
    return converted | {"b_ih": weights["gru.bias_ih_l0"], "b_hh": weights["gru.bias_hh_l0"]}


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(8700 + step)
    lengths = np.array([4, 6, 3, 5])
    is_word = np.arange(TIME) < lengths[:, None]
    tokens = np.where(is_word, random.integers(1, WORDS, size=(BATCH, TIME)), 0)
    tags = np.where(is_word, random.integers(TAGS, size=(BATCH, TIME)), IGNORED)
    return tokens, lengths, tags, random.integers(KINDS, size=BATCH)


FAULTS = (
    Fault("order of another library", "order gates cell output", "i, f, g, o =", "i, f, o, g ="),
    Fault("forgets less, as another library", "cell gates", "f.sigmoid() * c", "(f + 1).sigmoid() * c"),
    Fault("output is not bent", "output", "new_c.tanh()", "new_c"),
    Fault("state goes on after the last word", "kept_output kept repeated", "torch.where(valid, new_h, h)", "new_h"),
    Fault(
        "way back goes ahead",
        "entered repeated order gates cell output",
        "reversed(range(TIME)) if self.is_back else range(TIME)",
        "range(TIME)",
        edit="way",
    ),
    Fault(
        "cuts the way through time", "repeated output kept", "self.again(h)", "self.again(h.detach())", is_backward=True
    ),
    Fault(
        "resets before the product",
        "new",
        "reset * own[:, 2 * STATE :]",
        "F.linear(reset * h, self.w_hh[2 * STATE :], self.b_hh[2 * STATE :])",
    ),
    Fault("update counts the other way", "moved", "torch.lerp(new, h, update)", "torch.lerp(h, new, update)"),
    Fault(
        "state begins anew",
        "carried reset new",
        "self.h = h.detach()",
        "_ = h.detach()",
        edit="remembered",
        steps=2,
        first_step=1,
    ),
    Fault("ends of the sentence exchanged", "sentence kinds", "torch.cat((last, first)", "torch.cat((first, last)"),
    Fault(
        "each gradient clipped by itself",
        "clipped size",
        "CLIP / (size + 1e-6)",
        "CLIP / (gradient.norm() + 1e-6)",
        is_backward=True,
    ),
    Fault(
        "reference averages over padding",
        "mean errors",
        "ignore_index=IGNORED)",
        'ignore_index=IGNORED, reduction="sum") / tags.numel()',
        side="reference",
    ),
)
