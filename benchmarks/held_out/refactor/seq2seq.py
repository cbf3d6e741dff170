"""An encoder and a decoder by the library's attention; by hand, and half a batch at a time, after the refactor."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from held_out.fault import Fault
from held_out.weight import Weights

WORDS, FOREIGN, WIDTH, HEADS, HIDDEN, LAYERS, BATCH, PARTS = 21, 17, 24, 3, 32, 2, 4, 2
SIZE, SMOOTH, PAD, SOURCE, TARGET = WIDTH // HEADS, 0.1, 0, 7, 6


def make_positions(length, dtype):
    position = torch.arange(length).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH))  # @speeds
    encoding = torch.zeros(length, WIDTH)
    encoding[:, 0::2] = torch.sin(position * div_term)  # @sinus
    encoding[:, 1::2] = torch.cos(position * div_term)  # @sinus
    return encoding.to(dtype)


class EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.linear1, self.linear2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x, padding):
        y = self.norm1(x)  # @norm1
        y, _ = self.self_attn(y, y, y, key_padding_mask=padding, need_weights=False)  # @own @masked @scores @mixed
        x = x + y  # @added
        return x + self.linear2(F.relu(self.linear1(self.norm2(x))))  # @norm2 @fed @added2


class DecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.multihead_attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.linear1, self.linear2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x, memory, causal, padding):
        y = self.norm1(x)  # @norm1
        x = x + self.self_attn(y, y, y, attn_mask=causal, need_weights=False)[0]  # @own @added @causal @scores @mixed
        y = self.norm2(x)  # @cross_norm
        y, _ = self.multihead_attn(y, memory, memory, key_padding_mask=padding)  # @cross @cross_mask @scores @mixed
        x = x + y  # @cross_added
        return x + self.linear2(F.relu(self.linear1(self.norm3(x))))  # @norm2 @fed @added2


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(FOREIGN, WIDTH, padding_idx=PAD)
        self.target = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.ModuleList([EncoderLayer() for _ in range(LAYERS)])
        self.decoder = nn.ModuleList([DecoderLayer() for _ in range(LAYERS)])
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.generator = nn.Linear(WIDTH, WORDS, bias=False)
        self.generator.weight = self.target.weight

    def forward(self, source, target):
        padding = source == PAD  # @pad
        x = self.source(source) * math.sqrt(WIDTH)  # @source
        x = x + make_positions(SOURCE, x.dtype)  # @placed
        for layer in self.encoder:
            x = layer(x, padding)
        memory = self.encoder_norm(x)  # @memory
        causal = torch.ones(TARGET, TARGET, dtype=torch.bool).triu(1)  # @causal
        y = self.target(target) * math.sqrt(WIDTH)  # @target
        y = y + make_positions(TARGET, y.dtype)  # @placed
        for layer in self.decoder:
            y = layer(y, memory, causal, padding)
        return self.generator(self.decoder_norm(y))  # @head


def compute_reference_loss(network, source, words):
    logits = network(source, words[:, :-1]).float()  # @shifted
    goal = words[:, 1:].reshape(-1)  # @shifted
    logits = logits.reshape(-1, WORDS)
    return F.cross_entropy(logits, goal, ignore_index=PAD, label_smoothing=SMOOTH)  # @logs @smooth @kept @part


def sinusoids(length: int, like: Tensor) -> Tensor:
    speeds = 10000.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)  # @speeds
    angles = torch.arange(length)[:, None] * speeds  # @speeds @sinus
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).type_as(like)  # @sinus @woven


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, context: Tensor, hidden: Tensor) -> Tensor:
        query = self.q(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) * SIZE**-0.5  # @own @cross @scores
        joined = self.kv(context).unflatten(-1, (2 * HEADS, SIZE)).transpose(1, 2)  # @own @cross @parted
        key, value = joined.chunk(2, dim=1)  # @own @cross @parted
        scores = query @ key.transpose(-1, -2)  # @own @cross @scores
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)  # @masked @causal @cross_mask
        chances = torch.softmax(scores.float(), dim=-1).type_as(value)  # @scores
        return self.o((chances @ value).transpose(1, 2).flatten(2))  # @own @cross @mixed


def make_feed() -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))


class Layer(nn.Module):
    """Of the encoder, or with a look at the source of the decoder."""

    def __init__(self, is_decoder: bool) -> None:
        super().__init__()
        self.norm, self.own, self.feed = nn.LayerNorm(WIDTH), Attend(), make_feed()
        if is_decoder:
            self.cross_norm, self.cross = nn.LayerNorm(WIDTH), Attend()

    def forward(self, x: Tensor, hidden: Tensor, memory: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        y = self.norm(x)  # @norm1
        x = x + self.own(y, y, hidden)  # @own @added
        if memory is not None:
            x = x + self.cross(self.cross_norm(x), memory, padding)  # @cross @cross_norm @cross_added
        return x + self.feed(x)  # @norm2 @fed @added2


class Candidate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.foreign, self.words = nn.Embedding(FOREIGN, WIDTH), nn.Parameter(torch.zeros(WORDS, WIDTH))
        self.encoder = nn.ModuleList([Layer(False) for _ in range(LAYERS)])
        self.decoder = nn.ModuleList([Layer(True) for _ in range(LAYERS)])
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        padding = (source == PAD)[:, None, None]  # @pad
        embedded = self.foreign(source)
        x = embedded.mul(WIDTH**0.5).add_(sinusoids(SOURCE, embedded))  # @source @placed
        for layer in self.encoder:
            x = layer(x, padding)
        memory = self.norms[0](x)  # @memory
        future = torch.arange(TARGET) > torch.arange(TARGET)[:, None]  # @causal
        y = F.embedding(target, self.words)  # @target
        y = y * WIDTH**0.5 + sinusoids(TARGET, y)  # @target @placed
        for layer in self.decoder:
            y = layer(y, future, memory, padding)
        return F.linear(self.norms[1](y), self.words)  # @head


def smooth_sum(logits: Tensor, goal: Tensor) -> Tensor:
    logs = F.log_softmax(logits.float(), dim=-1)  # @logs
    error = -logs.gather(-1, goal.unsqueeze(-1)).squeeze(-1)  # @logs
    error = (1 - SMOOTH) * error - SMOOTH * logs.mean(dim=-1)  # @smooth
    return (error * (goal != PAD)).sum()  # @kept


def compute_candidate_loss(network, source, words):
    """Half of the batch at a time; all words of both count the same."""
    count = (words[:, 1:] != PAD).sum()  # @count
    for some, theirs in zip(source.chunk(PARTS), words.chunk(PARTS), strict=True):
        logits, goal = network(some, theirs[:, :-1]), theirs[:, 1:]  # @shifted
        yield smooth_sum(logits, goal) / count  # @part


def convert(weights: Weights) -> Weights:
    converted = {"foreign.weight": weights["source.weight"], "words": weights["target.weight"]}
    for word in ("weight", "bias"):
        converted[f"norms.0.{word}"] = weights[f"encoder_norm.{word}"]
        converted[f"norms.1.{word}"] = weights[f"decoder_norm.{word}"]
        for kind in ("encoder", "decoder"):
            for number in range(LAYERS):
                path = f"{kind}.{number}"
                attentions = {"self_attn": "own"} | ({"multihead_attn": "cross"} if kind == "decoder" else {})
                for old, new in attentions.items():
                    joined = weights[f"{path}.{old}.in_proj_{word}"]
                    converted[f"{path}.{new}.q.{word}"] = joined[:WIDTH]
                    converted[f"{path}.{new}.kv.{word}"] = joined[WIDTH:]
                    converted[f"{path}.{new}.o.{word}"] = weights[f"{path}.{old}.out_proj.{word}"]
                norms = ("norm", "feed.0") if kind == "encoder" else ("norm", "cross_norm", "feed.0")
                for place, new in enumerate(norms, 1):
                    converted[f"{path}.{new}.{word}"] = weights[f"{path}.norm{place}.{word}"]
                converted[f"{path}.feed.1.{word}"] = weights[f"{path}.linear1.{word}"]
                converted[f"{path}.feed.3.{word}"] = weights[f"{path}.linear2.{word}"]
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(8500 + step)
    source = random.integers(1, FOREIGN, size=(BATCH, SOURCE))
    words = random.integers(1, WORDS, size=(BATCH, TARGET + 1))
    source *= np.arange(SOURCE) < np.array([7, 4, 6, 5])[:, None]
    words *= np.arange(TARGET + 1) < np.array([7, 7, 4, 5])[:, None]
    return source, words


FAULTS = (
    Fault("sines before cosines", "sinus woven placed", ", dim=-1).flatten(1)", ", dim=1).flatten(1)", edit="woven"),
    Fault(
        "speeds by half the width",
        "speeds sinus",
        "torch.arange(0, WIDTH, 2) / WIDTH",
        "torch.arange(0, WIDTH, 2) / (WIDTH // 2)",
    ),
    Fault("words of the target not scaled", "target placed", "y * WIDTH**0.5 +", "y +"),
    Fault("root of the whole width", "scores own cross", "* SIZE**-0.5", "* WIDTH**-0.5"),
    Fault("keys and values exchanged", "parted own cross", "key, value =", "value, key ="),
    Fault("a word sees the next one", "causal", "torch.arange(TARGET) >", "torch.arange(TARGET) - 1 >"),
    Fault(
        "padding is seen from the target",
        "cross_mask cross",
        "memory, padding)",
        "memory, padding & False)",
        edit="cross",
    ),
    Fault("sum with the normed input", "added norm1", "x = x + self.own(y", "x = y + self.own(y"),
    Fault("memory not normed", "memory cross", "self.norms[0](x)", "x"),
    Fault(
        "words do not learn from the head",
        "head",
        "F.linear(self.norms[1](y), self.words)",
        "F.linear(self.norms[1](y), self.words.detach())",
        is_backward=True,
    ),
    Fault("halves weigh the same", "part count", "/ count", "/ (PARTS * (goal != PAD).sum())"),
    Fault(
        "reference sees padding in the source",
        "masked own scores",
        "key_padding_mask=padding, need_weights=False",
        "need_weights=False",
        edit="masked",
        side="reference",
    ),
)
