"""An encoder that guesses hidden words and the next sentence; attention by hand, or of the library in the port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
import torch
from mindspore import Parameter, Tensor, nn, ops
from torch.nn import functional as F

from held_out.fault import Fault
from held_out.weight import Weights

WORDS, PLACES, WIDTH, HEADS, HIDDEN, LAYERS, TIME, IGNORED = 30, 12, 16, 4, 24, 2, 9, -100


class Embeddings(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = torch.nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.position_embeddings = torch.nn.Embedding(PLACES, WIDTH)
        self.token_type_embeddings = torch.nn.Embedding(2, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, tokens, kinds):
        places = torch.arange(tokens.shape[1]).unsqueeze(0)
        x = self.word_embeddings(tokens) + self.token_type_embeddings(kinds)  # @words @kinds
        x = x + self.position_embeddings(places)  # @places @embedded
        return self.norm(x)  # @embedded @embed_norm


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = torch.nn.Linear(WIDTH, WIDTH)
        self.key = torch.nn.Linear(WIDTH, WIDTH)
        self.value = torch.nn.Linear(WIDTH, WIDTH)

    def split(self, x):
        return x.view(*x.shape[:-1], HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)

    def forward(self, x, mask):
        query = self.split(self.query(x))  # @attention
        key = self.split(self.key(x))  # @attention
        value = self.split(self.value(x))  # @attention
        scores = torch.matmul(query, key.transpose(-1, -2))  # @attention @scores
        scores = scores / math.sqrt(WIDTH // HEADS)  # @attention @scores @scaled
        scores = scores + mask  # @attention @masked
        chances = F.softmax(scores, dim=-1)  # @attention @masked
        mixed = torch.matmul(chances, value).permute(0, 2, 1, 3).contiguous()  # @attention
        return mixed.view(*x.shape)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.output = torch.nn.Linear(WIDTH, WIDTH)
        self.norm1 = torch.nn.LayerNorm(WIDTH, eps=1e-12)
        self.intermediate = torch.nn.Linear(WIDTH, HIDDEN)
        self.dense = torch.nn.Linear(HIDDEN, WIDTH)
        self.norm2 = torch.nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, x, mask):
        mixed = self.output(self.attention(x, mask))  # @attention
        x = self.norm1(mixed + x)  # @added1 @norm1
        hidden = F.gelu(self.intermediate(x))  # @wide @gelu
        return self.norm2(self.dense(hidden) + x)  # @narrow @added2 @norm2


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.layers = torch.nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.pooler = torch.nn.Linear(WIDTH, WIDTH)
        self.transform = torch.nn.Linear(WIDTH, WIDTH)
        self.transform_norm = torch.nn.LayerNorm(WIDTH, eps=1e-12)
        self.decoder = torch.nn.Linear(WIDTH, WORDS)
        self.decoder.weight = self.embeddings.word_embeddings.weight
        self.next = torch.nn.Linear(WIDTH, 2)

    def forward(self, tokens, kinds, seen):
        x = self.embeddings(tokens, kinds)
        mask = (1.0 - seen[:, None, None, :].float()) * -10000.0  # @mask
        for layer in self.layers:
            x = layer(x, mask)
        pooled = torch.tanh(self.pooler(x[:, 0]))  # @pooled @tanh
        h = self.transform_norm(F.gelu(self.transform(x)))  # @transform @transform_gelu @transform_norm
        return self.decoder(h), self.next(pooled)  # @decoder @next


def compute_reference_loss(network, tokens, kinds, seen, labels, is_next):
    scores, after = network(tokens, kinds, seen)
    hidden = F.cross_entropy(scores.view(-1, WORDS), labels.view(-1), ignore_index=IGNORED)  # @logs @chosen @hidden
    return hidden + F.cross_entropy(after.view(-1, 2), is_next.view(-1))  # @next_loss @loss


class EncoderLayer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm1 = nn.LayerNorm((WIDTH,), epsilon=1e-12)  # @norm1_made
        self.wide = nn.Dense(WIDTH, HIDDEN)
        self.narrow = nn.Dense(HIDDEN, WIDTH)
        self.norm2 = nn.LayerNorm((WIDTH,), epsilon=1e-12)

    def construct(self, x: Tensor, padding: Tensor) -> Tensor:
        mixed = self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]  # @attention @masked @scores
        x = self.norm1(x + mixed)  # @added1 @norm1
        h = ops.gelu(self.wide(x), approximate="none")  # @wide @gelu
        return self.norm2(x + self.narrow(h))  # @narrow @added2 @norm2


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = Parameter(ops.zeros((PLACES, WIDTH)), name="places")
        self.kinds = Parameter(ops.zeros((2, WIDTH)), name="kinds")
        self.norm = nn.LayerNorm((WIDTH,), epsilon=1e-12)
        self.layers = nn.CellList([EncoderLayer() for _ in range(LAYERS)])
        self.pooler = nn.Dense(WIDTH, WIDTH, activation="tanh")
        self.transform = nn.Dense(WIDTH, WIDTH)
        self.transform_norm = nn.LayerNorm((WIDTH,), epsilon=1e-12)
        self.bias = Parameter(ops.zeros((WORDS,)), name="bias")
        self.after = nn.Dense(WIDTH, 2)

    def construct(self, tokens: Tensor, kinds: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        x = self.words(tokens)  # @words
        x = x + self.places[: tokens.shape[1]]  # @places
        x = x + ops.gather(self.kinds, kinds, 0)  # @kinds @embedded
        x = self.norm(x)  # @embed_norm @embedded
        padding = ops.logical_not(seen)  # @mask
        for layer in self.layers:
            x = layer(x, padding)
        pooled = self.pooler(x[:, 0])  # @pooled @tanh
        h = ops.gelu(self.transform(x), approximate="none")  # @transform @transform_gelu
        h = self.transform_norm(h)  # @transform_norm
        scores = ops.matmul(h, self.words.embedding_table.T) + self.bias  # @decoder
        return scores, self.after(pooled)  # @next


def compute_candidate_loss(network, tokens, kinds, seen, labels, is_next):
    scores, after = network(tokens, kinds, seen)
    weight = (labels != IGNORED).astype(ms.float32)
    goal = ops.one_hot(ops.relu(labels), WORDS).astype(ms.float32)
    logs = ops.log_softmax(scores, -1)  # @logs
    each = -(logs * goal).sum(-1)  # @chosen
    hidden = (each * weight).sum() / (weight.sum() + 1e-9)  # @hidden
    return hidden + ops.cross_entropy(after, is_next)  # @next_loss @loss


def convert(weights: Weights) -> Weights:
    table = weights["embeddings.word_embeddings.weight"]
    converted = {"words.embedding_table": table, "bias": weights["decoder.bias"]}
    converted["places"] = weights["embeddings.position_embeddings.weight"]
    converted["kinds"] = weights["embeddings.token_type_embeddings.weight"]
    for new, old in {"norm": "embeddings.norm", "transform_norm": "transform_norm"}.items():
        converted |= {f"{new}.gamma": weights[f"{old}.weight"], f"{new}.beta": weights[f"{old}.bias"]}
    dense = {"pooler": "pooler", "transform": "transform", "after": "next"}
    for number in range(LAYERS):
        path = f"layers.{number}"
        for norm in ("norm1", "norm2"):
            converted[f"{path}.{norm}.gamma"] = weights[f"{path}.{norm}.weight"]
            converted[f"{path}.{norm}.beta"] = weights[f"{path}.{norm}.bias"]
        dense[f"{path}.attention.out_proj"] = f"{path}.output"
        dense |= {f"{path}.wide": f"{path}.intermediate", f"{path}.narrow": f"{path}.dense"}
        for word in ("weight", "bias"):
            parts = [weights[f"{path}.attention.{part}.{word}"] for part in ("query", "key", "value")]  # @load
            converted[f"{path}.attention.in_proj_{word}"] = np.concatenate(parts)
    for new, old in dense.items():
        converted |= {f"{new}.weight": weights[f"{old}.weight"], f"{new}.bias": weights[f"{old}.bias"]}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(7200 + step)
    length, first = np.array([9, 6, 8, 5]), np.array([4, 3, 5, 2])
    place = np.arange(TIME)
    seen, kinds = place < length[:, None], (place >= first[:, None]).astype(np.int64)
    words = np.where(seen, random.integers(4, WORDS, size=(4, TIME)), 0)
    hidden = seen & (place > 0) & (random.random(words.shape) < 0.4)
    hidden[:, 1] = True
    labels = np.where(hidden, words, IGNORED)
    return np.where(hidden, 3, words), kinds, seen, labels, random.integers(2, size=4)


FAULTS = (
    Fault("gelu by the tangent", "gelu", '"none"', '"tanh"'),
    Fault("epsilon of the first norm", "norm1", "epsilon=1e-12", "epsilon=1e-3", edit="norm1_made"),
    Fault("padding is seen", "mask masked", "ops.logical_not(seen)", "ops.zeros_like(seen)"),
    Fault(
        "the last word of each is hidden",
        "mask masked",
        "ops.logical_not(seen)",
        "ops.logical_not(ops.cat((seen[:, 1:], ops.zeros_like(seen[:, :1])), 1))",
    ),
    Fault("norm before the sum", "added1 norm1", "self.norm1(x + mixed)", "x + self.norm1(mixed)"),
    Fault("places begin at one", "places", ": tokens.shape[1]]", "1 : tokens.shape[1] + 1]"),
    Fault("pooled from the last place", "pooled", "x[:, 0]", "x[:, -1]"),
    Fault(
        "norm before the activation of the head",
        "transform transform_gelu transform_norm",
        'ops.gelu(self.transform(x), approximate="none")',
        'ops.gelu(self.transform_norm(self.transform(x)), approximate="none")',
        second=("transform_norm", "self.transform_norm(h)", "h"),
    ),
    Fault(
        "table of the decoder is not tied",
        "decoder",
        "self.words.embedding_table.T",
        "ops.stop_gradient(self.words.embedding_table).T",
        is_backward=True,
    ),
    Fault("decoder without a bias", "decoder logs", " + self.bias", ""),
    Fault(
        "mean over all words",
        "hidden",
        "(each * weight).sum() / (weight.sum() + 1e-9)",
        "(each * weight).mean()",
    ),
    Fault(
        "keys before queries",
        "attention scores",
        '("query", "key", "value")',
        '("key", "query", "value")',
        edit="load",
        parameter="attention",
    ),
    Fault(
        "reference scales by the whole width",
        "scaled attention scores",
        "math.sqrt(WIDTH // HEADS)",
        "math.sqrt(WIDTH)",
        side="reference",
    ),
    Fault(
        "segments forgotten, and half of the next sentence",
        "kinds embedded embed_norm",
        "x + ops.gather(self.kinds, kinds, 0)",
        "x + self.kinds[0]",
        second=("loss", "hidden + ops", "hidden + 0.5 * ops"),
    ),
)
