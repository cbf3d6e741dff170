"""A decoder without attention: a weighted mean of all past values, by a stable recursion or by a matrix of decays."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

WORDS, WIDTH, HIDDEN, LAYERS, TIME, BATCH, NONE = 19, 8, 14, 2, 6, 3, -100


def shift(x, last):
    """The word before each word; before the first one, what the step before ended with."""
    return torch.cat([last.unsqueeze(1), x[:, :-1]], dim=1)  # @shift


class TimeMix(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix_k, self.mix_v, self.mix_r = (torch.nn.Parameter(torch.zeros(WIDTH)) for _ in range(3))
        self.decay, self.first = torch.nn.Parameter(torch.zeros(WIDTH)), torch.nn.Parameter(torch.zeros(WIDTH))
        self.key, self.value = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.receptance, self.out = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))

    def forward(self, x, last):
        before = shift(x, last)
        k = self.key(torch.lerp(before, x, self.mix_k))  # @mix @key
        v = self.value(torch.lerp(before, x, self.mix_v))  # @mix @value
        r = torch.sigmoid(self.receptance(torch.lerp(before, x, self.mix_r)))  # @mix @receptance
        decay = -torch.exp(self.decay)  # @decay
        top, bottom, most = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0]), torch.full_like(k[:, 0], -1e30)
        found = []
        for time in range(TIME):
            now = self.first + k[:, time]  # @bonus
            high = torch.maximum(most, now)
            old, new = torch.exp(most - high), torch.exp(now - high)  # @power
            found.append((old * top + new * v[:, time]) / (old * bottom + new))  # @top @bottom @average
            high = torch.maximum(most + decay, k[:, time])
            old, new = torch.exp(most + decay - high), torch.exp(k[:, time] - high)  # @distance @power
            top, bottom, most = old * top + new * v[:, time], old * bottom + new, high  # @top @bottom
        return self.out(r * torch.stack(found, dim=1))  # @gated @out


class ChannelMix(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix_k, self.mix_r = torch.nn.Parameter(torch.zeros(WIDTH)), torch.nn.Parameter(torch.zeros(WIDTH))
        self.key = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
        self.receptance = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = torch.nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x, last):
        before = shift(x, last)
        k = self.key(before + (x - before) * self.mix_k).relu().square()  # @channel_mix @square
        r = self.receptance(before + (x - before) * self.mix_r).sigmoid()  # @channel_mix @channel_gate
        return r * self.value(k)  # @channel_value @channel_out


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.norm0, self.norm = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.norms1 = torch.nn.ModuleList([torch.nn.LayerNorm(WIDTH) for _ in range(LAYERS)])
        self.norms2 = torch.nn.ModuleList([torch.nn.LayerNorm(WIDTH) for _ in range(LAYERS)])
        self.times = torch.nn.ModuleList([TimeMix() for _ in range(LAYERS)])
        self.channels = torch.nn.ModuleList([ChannelMix() for _ in range(LAYERS)])
        self.head = torch.nn.Linear(WIDTH, WORDS, bias=False)
        self.register_buffer("last", torch.zeros(2 * LAYERS, BATCH, WIDTH), persistent=False)

    def forward(self, tokens):
        x, kept = self.norm0(self.words(tokens)), []  # @words @norm0
        for number in range(LAYERS):
            h = self.norms1[number](x)  # @norm1
            x = x + self.times[number](h, self.last[2 * number])  # @carried @first_add
            g = self.norms2[number](x)  # @norm2
            x = x + self.channels[number](g, self.last[2 * number + 1])  # @carried @second_add
            kept += [h[:, -1], g[:, -1]]  # @kept
        self.last = torch.stack(kept).detach()  # @store
        return self.head(self.norm(x))  # @last_norm @head


def compute_reference_loss(network, tokens, labels):
    logits = network(tokens)
    return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=NONE)  # @losses @counted @loss


class Mixed(nn.Cell):
    """Both kinds of layers take a part of the word before; the parts are the rows of one parameter."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.mix = ms.Parameter(ops.zeros((rows, WIDTH)), name="mix")

    def blend(self, x, last):
        before = ops.cat((last.expand_dims(1), x[:, :-1]), axis=1)  # @shift
        return [x * part + before * (1 - part) for part in self.mix]  # @mix @channel_mix


class Times(Mixed):
    def __init__(self) -> None:
        super().__init__(3)
        self.decay = ms.Parameter(ops.zeros((WIDTH,)), name="decay")
        self.first = ms.Parameter(ops.zeros((WIDTH,)), name="first")
        self.key, self.value, self.receptance, self.out = (nn.Dense(WIDTH, WIDTH, has_bias=False) for _ in range(4))
        distance = np.arange(TIME)[:, None] - 1 - np.arange(TIME)[None, :]  # @distance_made
        self.distance = ms.Tensor(np.maximum(distance, 0)[:, :, None], ms.float32)
        self.past = ms.Tensor((distance >= 0)[:, :, None], ms.float32)  # @past_made
        self.own = ms.Tensor(np.eye(TIME)[:, :, None], ms.float32)

    def construct(self, x, last):
        x_k, x_v, x_r = self.blend(x, last)  # @parts
        k, v, r = self.key(x_k), self.value(x_v), ops.sigmoid(self.receptance(x_r))  # @key @value @receptance
        fade = ops.exp(-ops.exp(self.decay) * self.distance)  # @decay @distance
        weight = fade * self.past + ops.exp(self.first) * self.own  # @past @bonus
        weight = weight * ops.exp(k).expand_dims(1)  # @power
        top = (weight * v.expand_dims(1)).sum(2)  # @top
        return self.out(r * (top / weight.sum(2)))  # @bottom @average @gated @out


class Channels(Mixed):
    def __init__(self) -> None:
        super().__init__(2)
        self.key, self.receptance = nn.Dense(WIDTH, HIDDEN, has_bias=False), nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.value = nn.Dense(HIDDEN, WIDTH, has_bias=False)

    def construct(self, x, last):
        x_k, x_r = self.blend(x, last)
        k = ops.pow(ops.relu(self.key(x_k)), 2)  # @square
        return self.value(k) * ops.sigmoid(self.receptance(x_r))  # @channel_value @channel_gate @channel_out


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.norm0, self.norm = nn.LayerNorm((WIDTH,), epsilon=1e-5), nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.norms1 = nn.CellList([nn.LayerNorm((WIDTH,), epsilon=1e-5) for _ in range(LAYERS)])  # @made1
        self.norms2 = nn.CellList([nn.LayerNorm((WIDTH,), epsilon=1e-5) for _ in range(LAYERS)])
        self.times = nn.CellList([Times() for _ in range(LAYERS)])
        self.channels = nn.CellList([Channels() for _ in range(LAYERS)])
        self.head = ms.Parameter(ops.zeros((WIDTH, WORDS)), name="head")
        self.last = [(ops.zeros((BATCH, WIDTH)), ops.zeros((BATCH, WIDTH))) for _ in range(LAYERS)]

    def construct(self, tokens):
        x = self.norm0(self.words(tokens))  # @words @norm0
        for number, (time, channel) in enumerate(zip(self.times, self.channels, strict=True)):
            last_h, last_g = self.last[number]
            h = self.norms1[number](x)  # @norm1
            x = time(h, last_h) + x  # @carried @first_add
            g = self.norms2[number](x)  # @norm2
            x = channel(g, last_g) + x  # @carried @second_add
            kept = (h[:, -1], g[:, -1])  # @kept
            self.last[number] = tuple(ops.stop_gradient(one) for one in kept)  # @store
        return mint.matmul(self.norm(x), self.head)  # @last_norm @head


def compute_candidate_loss(network, tokens, labels):
    logits = network(tokens)
    counted = (labels != NONE).astype(ms.float32)  # @counted
    wanted = ops.maximum(labels, ops.zeros_like(labels)).expand_dims(-1)
    picked = ops.gather_elements(logits, 2, wanted).squeeze(-1)  # @losses
    losses = (ops.logsumexp(logits, -1) - picked) * counted  # @losses @counted
    return losses.sum() / counted.sum()  # @loss


def convert(weights: Weights) -> Weights:
    converted = {"words.embedding_table": weights["words.weight"], "head": weights["head.weight"].T}
    for name, array in weights.items():
        path, _, word = name.rpartition(".")
        if path.startswith("norm"):
            converted[f"{path}.{'gamma' if word == 'weight' else 'beta'}"] = array
        elif path.startswith(("times", "channels")) and not word.startswith("mix"):
            converted[name] = array
    for number in range(LAYERS):
        for path, words in ((f"times.{number}", ("k", "v", "r")), (f"channels.{number}", ("k", "r"))):  # @load
            converted[f"{path}.mix"] = np.stack([weights[f"{path}.mix_{word}"] for word in words])
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    text = np.random.default_rng(5200 + step).integers(WORDS, size=(BATCH, TIME + 1))
    labels = text[:, 1:].copy()
    labels[0, :2], labels[2, 3] = NONE, NONE
    return text[:, :-1].copy(), labels


FAULTS = (
    Fault(
        "past values fade one step too much",
        "distance",
        "[:, None] - 1 - np",
        "[:, None] - 0 - np",
        edit="distance_made",
    ),
    Fault("present value twice", "past bonus", "distance >= 0", "distance >= -1", edit="past_made"),
    Fault("decay not exponentiated", "decay", "-ops.exp(self.decay)", "-ops.abs(self.decay)"),
    Fault("bonus forgotten", "bonus", "ops.exp(self.first) * self.own", "self.own"),
    Fault("parts of keys and values swapped", "parts key value", "x_k, x_v, x_r =", "x_v, x_k, x_r ="),
    Fault("parts the other way round", "mix", "x * part + before * (1 - part)", "before * part + x * (1 - part)"),
    Fault("not squared", "square", "ops.pow(ops.relu(self.key(x_k)), 2)", "ops.relu(self.key(x_k))"),
    Fault("epsilon of the norms", "norm1", "epsilon=1e-5", "epsilon=1e-2", edit="made1"),
    Fault(
        "state before the norm",
        "kept store carried shift",
        "(h[:, -1],",
        "(x[:, -1],",
        edit="kept",
        steps=2,
        first_step=1,
    ),
    Fault("state never stored", "carried shift", "self.last[number] =", "_ =", edit="store", steps=2, first_step=1),
    Fault("gate detached", "gated receptance", "r * (top", "ops.stop_gradient(r) * (top", is_backward=True),
    Fault("mean over the words that do not count, too", "loss", "/ counted.sum()", "/ counted.size"),
    Fault(
        "rows of the parts in another order",
        "mix parts",
        '("k", "v", "r")',
        '("r", "k", "v")',
        edit="load",
        parameter="mix",
    ),
    Fault(
        "reference keeps the largest power of the step before",
        "top bottom power",
        "old * bottom + new, high",
        "old * bottom + new, most + decay",
        edit="top",
        side="reference",
    ),
    Fault(
        "weights summed over the wrong times, and no gate",
        "bottom average",
        "weight.sum(2)",
        "weight.sum(1)",
        second=("channel_out", " * ops.sigmoid(self.receptance(x_r))", ""),
    ),
)
