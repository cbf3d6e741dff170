"""A decoder over packed documents, rotated by halves; by pairs in the port, which reorders and joins projections."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

WORDS, WIDTH, HEADS, SHARED, SIZE, HIDDEN, LAYERS, TIME = 23, 24, 4, 2, 6, 32, 2, 10
GROUP, BASE, EPSILON, IGNORED = HEADS // SHARED, 10000.0, 1e-5, -100


class RMSNorm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)  # @norm
        x = x * torch.rsqrt(variance + EPSILON)  # @norm @root
        return self.weight * x  # @norm @scaled


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)  # @rotated


def apply_rotary(query, key, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    query = (query * cos) + (rotate_half(query) * sin)  # @rotated @rotated_query
    return query, (key * cos) + (rotate_half(key) * sin)  # @rotated @rotated_key


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = torch.nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.k_proj = torch.nn.Linear(WIDTH, SHARED * SIZE, bias=False)
        self.v_proj = torch.nn.Linear(WIDTH, SHARED * SIZE, bias=False)
        self.o_proj = torch.nn.Linear(HEADS * SIZE, WIDTH, bias=False)

    def forward(self, x, cos, sin, mask):
        batch, time, _ = x.shape
        query = self.q_proj(x).view(batch, time, HEADS, SIZE).transpose(1, 2)  # @query
        key = self.k_proj(x).view(batch, time, SHARED, SIZE).transpose(1, 2)  # @key
        value = self.v_proj(x).view(batch, time, SHARED, SIZE).transpose(1, 2)  # @value
        query, key = apply_rotary(query, key, cos, sin)  # @rotated
        key, value = key.repeat_interleave(GROUP, dim=1), value.repeat_interleave(GROUP, dim=1)  # @grouped
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)  # @scores @masked @soft @mixed
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, time, -1))  # @out


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_norm, self.post_norm = RMSNorm(), RMSNorm()
        self.self_attn = Attention()
        self.gate_proj = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up_proj = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down_proj = torch.nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x, cos, sin, mask):
        residual = x
        x = residual + self.self_attn(self.input_norm(x), cos, sin, mask)  # @added
        residual = x
        x = self.post_norm(x)
        gate, up = self.gate_proj(x), self.up_proj(x)  # @wide
        return residual + self.down_proj(F.silu(gate) * up)  # @gated @added2


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = RMSNorm()
        self.lm_head = torch.nn.Linear(WIDTH, WORDS, bias=False)
        inverse = 1.0 / (BASE ** (torch.arange(0, SIZE, 2).float() / SIZE))  # @inverse
        self.register_buffer("inverse", inverse, persistent=False)

    def forward(self, tokens, places, documents):
        angles = places[..., None].float() * self.inverse  # @angles
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos(), angles.sin()  # @angles
        causal = torch.ones(TIME, TIME, dtype=torch.bool).tril()  # @causal
        mask = causal & (documents[:, :, None] == documents[:, None, :])  # @causal @together
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin, mask[:, None])
        return self.lm_head(self.norm(x))  # @head


def compute_reference_loss(network, tokens, places, documents, labels):
    logits = network(tokens, places, documents)
    logits = logits[:, :-1].reshape(-1, WORDS)
    goal = labels[:, 1:].reshape(-1)
    return F.cross_entropy(logits, goal, ignore_index=IGNORED)  # @loss


class RootNorm(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(ops.ones((WIDTH,)), name="weight")

    def construct(self, x: Tensor) -> Tensor:
        root = ops.sqrt(ops.mean(ops.square(x), -1, True) + EPSILON)  # @norm @root
        return x / root * self.weight  # @norm @scaled


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Neighbours are a pair."""
    pairs = x.reshape(*x.shape[:-1], SIZE // 2, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    turned = ops.stack((even * cos - odd * sin, even * sin + odd * cos), -1)  # @rotated
    return turned.reshape(x.shape)


class DecoderLayer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = RootNorm(), RootNorm()
        self.wq = nn.Dense(WIDTH, HEADS * SIZE, has_bias=False)
        self.wkv = nn.Dense(WIDTH, 2 * SHARED * SIZE, has_bias=False)
        self.wo = nn.Dense(HEADS * SIZE, WIDTH, has_bias=False)
        self.w13 = mint.nn.Linear(WIDTH, 2 * HIDDEN, bias=False)
        self.w2 = mint.nn.Linear(HIDDEN, WIDTH, bias=False)

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch = x.shape[0]
        query = self.wq(x).reshape(batch, TIME, HEADS, SIZE)  # @query
        key, value = ops.split(self.wkv(x), SHARED * SIZE, -1)  # @key @value
        query = rotate(query, cos, sin)  # @rotated @rotated_query
        key = rotate(key.reshape(batch, TIME, SHARED, SIZE), cos, sin)  # @rotated @rotated_key
        query = query.reshape(batch, TIME, SHARED, GROUP, SIZE).permute(0, 2, 3, 1, 4)  # @grouped
        key = key.permute(0, 2, 3, 1).expand_dims(2)
        value = value.reshape(batch, TIME, SHARED, SIZE).swapaxes(1, 2).expand_dims(2)  # @spread
        scores = ops.matmul(query, key) * SIZE**-0.5  # @scores
        scores = scores + mask  # @masked
        chances = ops.softmax(scores, axis=-1)  # @soft
        mixed = ops.matmul(chances, value).permute(0, 3, 1, 2, 4)  # @mixed
        return self.wo(mixed.reshape(batch, TIME, HEADS * SIZE))  # @out

    def construct(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.attend(h, cos, sin, mask)  # @added
        gate, up = mint.chunk(self.w13(self.norm2(x)), 2, dim=-1)  # @wide
        return x + self.w2(ops.silu(gate) * up)  # @gated @added2


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.CellList([DecoderLayer() for _ in range(LAYERS)])
        self.norm = RootNorm()
        self.output = nn.Dense(WIDTH, WORDS, has_bias=False)
        self.speeds = Tensor(BASE ** (-np.arange(0, SIZE, 2) / SIZE), ms.float32)  # @speeds_made
        self.future = Tensor(np.triu(np.ones((TIME, TIME)), 1).astype(bool))  # @future_made

    def construct(self, tokens: Tensor, places: Tensor, documents: Tensor) -> Tensor:
        angles = (places.astype(ms.float32).expand_dims(-1) * self.speeds).expand_dims(2)  # @angles
        cos, sin = ops.cos(angles), ops.sin(angles)  # @angles
        apart = documents.expand_dims(2) != documents.expand_dims(1)  # @together
        hidden = ops.logical_or(self.future, apart)  # @causal @together
        mask = ops.zeros(hidden.shape, ms.float32).masked_fill(hidden, -1e9)  # @filled
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin, mask[:, None, None])
        return self.output(self.norm(x))  # @head


def compute_candidate_loss(network, tokens, places, documents, labels):
    logits = network(tokens, places, documents)
    end = ops.full_like(labels[:, :1], IGNORED)
    goal = ops.cat((labels[:, 1:], end), 1)  # @goal
    return ops.cross_entropy(logits.reshape(-1, WORDS), goal.reshape(-1), ignore_index=IGNORED)  # @loss


def interleave(weight: np.ndarray) -> np.ndarray:
    """Rows of each head: the two halves become pairs."""
    halves = weight.reshape(-1, 2, SIZE // 2, WIDTH)
    return halves.swapaxes(1, 2).reshape(weight.shape)


def convert(weights: Weights) -> Weights:
    converted = {"embedding.embedding_table": weights["embed_tokens.weight"]}
    converted |= {"output.weight": weights["lm_head.weight"], "norm.weight": weights["norm.weight"]}
    for number in range(LAYERS):
        path = f"layers.{number}"
        old = {name.removeprefix(f"{path}."): array for name, array in weights.items() if name.startswith(path)}
        key, value = interleave(old["self_attn.k_proj.weight"]), old["self_attn.v_proj.weight"]
        converted[f"{path}.wq.weight"] = interleave(old["self_attn.q_proj.weight"])  # @load_query
        converted[f"{path}.wkv.weight"] = np.concatenate([key, value])
        converted[f"{path}.wo.weight"] = old["self_attn.o_proj.weight"]
        converted[f"{path}.w13.weight"] = np.concatenate([old["gate_proj.weight"], old["up_proj.weight"]])
        converted[f"{path}.w2.weight"] = old["down_proj.weight"]
        converted |= {f"{path}.norm1.weight": old["input_norm.weight"], f"{path}.norm2.weight": old["post_norm.weight"]}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(7300 + step)
    tokens = random.integers(WORDS, size=(3, TIME))
    borders = np.array([[4, 8], [5, 10], [3, 7]])
    documents = (np.arange(TIME) >= borders[:, :1]).astype(np.int64) + (np.arange(TIME) >= borders[:, 1:])
    starts = np.concatenate([np.zeros((3, 1), np.int64), borders], axis=1)
    places = np.arange(TIME) - np.take_along_axis(starts, documents, axis=1)
    labels = np.where((places == 0) | (random.random(tokens.shape) < 0.2), IGNORED, tokens)
    return tokens, places, documents, labels


FAULTS = (
    Fault(
        "epsilon beside the root",
        "norm root",
        "ops.sqrt(ops.mean(ops.square(x), -1, True) + EPSILON)",
        "ops.sqrt(ops.mean(ops.square(x), -1, True)) + EPSILON",
    ),
    Fault(
        "rows of the queries stay in halves",
        "rotated rotated_query query",
        'interleave(old["self_attn.q_proj.weight"])',
        'old["self_attn.q_proj.weight"]',
        edit="load_query",
        parameter="q_proj",
    ),
    Fault(
        "speeds counted one by one",
        "angles inverse",
        "-np.arange(0, SIZE, 2)",
        "-np.arange(SIZE // 2)",
        edit="speeds_made",
    ),
    Fault(
        "places go on from document to document",
        "angles",
        "places.astype(ms.float32).expand_dims(-1)",
        "ops.arange(TIME).astype(ms.float32).expand_dims(-1).expand_dims(0)",
        has_effect=False,
    ),
    Fault(
        "keys turn the other way", "rotated_key rotated scores", "SHARED, SIZE), cos, sin)", "SHARED, SIZE), cos, -sin)"
    ),
    Fault(
        "heads take their keys in turn",
        "grouped scores",
        "SHARED, GROUP, SIZE).permute(0, 2, 3, 1, 4)",
        "GROUP, SHARED, SIZE).permute(0, 3, 2, 1, 4)",
    ),
    Fault(
        "one word ahead is seen", "causal masked filled", "(TIME, TIME)), 1)", "(TIME, TIME)), 2)", edit="future_made"
    ),
    Fault(
        "documents see each other",
        "together causal masked",
        "ops.logical_or(self.future, apart)",
        "ops.logical_or(self.future, ops.zeros_like(apart))",
    ),
    Fault("hidden words shine through", "masked filled", "-1e9", "-8.0", edit="filled"),
    Fault("scale by the whole width", "scores", "* SIZE**-0.5", "* (HEADS * SIZE) ** -0.5"),
    Fault("gate and up exchanged", "wide gated", "gate, up =", "up, gate ="),
    Fault("sum with the normed input", "added", "x = x + self.attend(h", "x = h + self.attend(h"),
    Fault(
        "no gradient through the values",
        "value mixed spread",
        "value = value.reshape",
        "value = ops.stop_gradient(value).reshape",
        edit="spread",
        is_backward=True,
    ),
    Fault("labels not shifted", "goal loss", "(labels[:, 1:], end)", "(labels[:, :-1], end)"),
    Fault(
        "reference divides ignored words too",
        "loss",
        "F.cross_entropy(logits, goal, ignore_index=IGNORED)",
        'F.cross_entropy(logits, goal, ignore_index=IGNORED, reduction="sum") / len(goal)',
        side="reference",
    ),
)
