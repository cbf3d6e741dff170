"""A decoder with capped scores and words of a tied table, near and far layers in turns; the port is written in mint."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

WORDS, WIDTH, HEADS, SHARED, SIZE, HIDDEN, LAYERS, TIME = 27, 16, 4, 2, 6, 20, 3, 9
WINDOW, SCALAR, CAP, LAST_CAP, NEAR_BASE, FAR_BASE, EPSILON = 3, 24, 1.5, 2.5, 100.0, 10000.0, 1e-6
GROUP, IGNORED, SMOOTHING = HEADS // SHARED, -100, 0.1


class RMSNorm(torch.nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON)  # @norm @root
        return x * (1.0 + self.weight)  # @norm @gain


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)  # @rotated @rotated_query @rotated_key


class Rotary(torch.nn.Module):
    def __init__(self, base: float) -> None:
        super().__init__()
        self.register_buffer("inv_freq", base ** (-torch.arange(0, SIZE, 2).float() / SIZE), persistent=False)

    def forward(self, time: int):
        freqs = torch.outer(torch.arange(time).float(), self.inv_freq)  # @angles
        emb = torch.cat((freqs, freqs), dim=-1)  # @angles
        return emb.cos(), emb.sin()  # @angles


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = torch.nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.k_proj = torch.nn.Linear(WIDTH, SHARED * SIZE, bias=False)
        self.v_proj = torch.nn.Linear(WIDTH, SHARED * SIZE, bias=False)
        self.o_proj = torch.nn.Linear(HEADS * SIZE, WIDTH, bias=False)

    def forward(self, x, position, mask):
        batch, time, _ = x.shape
        cos, sin = position
        query = self.q_proj(x).view(batch, time, HEADS, SIZE).transpose(1, 2)  # @query
        key = self.k_proj(x).view(batch, time, SHARED, SIZE).transpose(1, 2)  # @key
        value = self.v_proj(x).view(batch, time, SHARED, SIZE).transpose(1, 2)  # @value
        query = query * cos + rotate_half(query) * sin  # @rotated @rotated_query
        key = key * cos + rotate_half(key) * sin  # @rotated @rotated_key
        key = key.repeat_interleave(GROUP, dim=1)  # @grouped
        value = value.repeat_interleave(GROUP, dim=1)  # @grouped_value
        scores = torch.matmul(query, key.transpose(2, 3)) * SCALAR**-0.5  # @scores @scale
        scores = torch.tanh(scores / CAP) * CAP  # @capped
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)  # @masked
        chances = F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)  # @soft
        out = torch.matmul(chances, value).transpose(1, 2).reshape(batch, time, -1)  # @mixed @merged
        return self.o_proj(out)  # @out


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention()
        self.gate_proj = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up_proj = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down_proj = torch.nn.Linear(HIDDEN, WIDTH, bias=False)
        self.input_norm, self.post_attention_norm = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.pre_mlp_norm, self.post_mlp_norm = RMSNorm(WIDTH), RMSNorm(WIDTH)

    def forward(self, x, position, mask):
        h = self.self_attn(self.input_norm(x), position, mask)
        x = x + self.post_attention_norm(h)  # @added
        h = self.pre_mlp_norm(x)
        h = F.gelu(self.gate_proj(h), approximate="tanh") * self.up_proj(h)  # @wide @gelu @gated
        return x + self.post_mlp_norm(self.down_proj(h))  # @down @added2


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.layers = torch.nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = RMSNorm(WIDTH)
        self.lm_head = torch.nn.Linear(WIDTH, WORDS, bias=False)
        self.lm_head.weight = self.embed_tokens.weight
        self.rotary_local, self.rotary_global = Rotary(NEAR_BASE), Rotary(FAR_BASE)

    def forward(self, tokens, attention_mask):
        x = self.embed_tokens(tokens) * WIDTH**0.5  # @embedded
        time = tokens.shape[1]
        ones = torch.ones(time, time, dtype=torch.bool)
        causal = ones.tril() & attention_mask[:, None, None, :].bool()  # @causal @valid
        sliding = causal & ~ones.tril(-WINDOW)  # @window
        near, far = self.rotary_local(time), self.rotary_global(time)
        for number, layer in enumerate(self.layers):
            x = layer(x, far, causal) if number % 2 else layer(x, near, sliding)
        logits = self.lm_head(self.norm(x))  # @head
        return torch.tanh(logits / LAST_CAP) * LAST_CAP  # @last_cap


def compute_reference_loss(network, tokens, attention_mask, labels):
    logits = network(tokens, attention_mask)[:, :-1].flatten(0, 1)
    goal = labels[:, 1:].flatten()
    return F.cross_entropy(logits, goal, ignore_index=IGNORED, label_smoothing=SMOOTHING)  # @logs @nll @smooth @loss


class RootMean(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.gain = Parameter(mint.zeros((WIDTH,)), name="gain")

    def construct(self, x: Tensor) -> Tensor:
        mean = mint.mean(mint.square(x), dim=-1, keepdim=True)  # @norm @root
        unit = mint.div(x, mint.sqrt(mint.add(mean, EPSILON)))  # @norm @root
        return mint.add(unit, unit * self.gain)  # @norm @gain


def make_table(base: float) -> tuple[Tensor, Tensor]:
    places = np.arange(TIME)[:, None, None] / base ** (np.arange(SIZE // 2) * 2 / SIZE)  # @angles_made
    return Tensor(np.cos(places), ms.float32), Tensor(np.sin(places), ms.float32)


def turn(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Heads come after times."""
    cos, sin = table
    left, right = mint.chunk(x, 2, dim=-1)  # @rotated @rotated_query @rotated_key
    left, right = left * cos - right * sin, left * sin + right * cos  # @rotated @rotated_query @rotated_key
    return mint.cat((left, right), dim=-1)  # @rotated @rotated_query @rotated_key


class Heads(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = mint.nn.Linear(WIDTH, (HEADS + 2 * SHARED) * SIZE, bias=False)
        self.output = mint.nn.Linear(HEADS * SIZE, WIDTH, bias=False)

    def construct(self, x: Tensor, table: tuple[Tensor, Tensor], visible: Tensor) -> Tensor:
        parts = mint.reshape(self.qkv(x), (-1, TIME, HEADS + 2 * SHARED, SIZE))  # @query @key @value
        q = parts[:, :, :HEADS]  # @query
        k, v = mint.chunk(parts[:, :, HEADS:], 2, dim=2)  # @key @value
        q = turn(q, table) * SCALAR**-0.5  # @scale
        k = turn(k, table)  # @turned_key
        q = mint.reshape(q, (-1, TIME, SHARED, GROUP, SIZE))  # @grouped
        q = mint.permute(q, (0, 2, 3, 1, 4))  # @grouped
        k, v = mint.permute(k, (0, 2, 3, 1)).unsqueeze(2), mint.permute(v, (0, 2, 1, 3)).unsqueeze(2)
        scores = mint.matmul(q, k)  # @scores
        scores = CAP * (2 * mint.sigmoid(scores * (2 / CAP)) - 1)  # @capped
        scores = mint.where(visible, scores, -1e9)  # @masked
        chances = mint.nn.functional.softmax(scores, dim=-1)  # @soft
        mixed = mint.matmul(chances, v)  # @mixed
        mixed = mint.permute(mixed, (0, 3, 1, 2, 4))  # @merged
        return self.output(mint.reshape(mixed, (-1, TIME, HEADS * SIZE)))  # @out


class Decoder(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.heads = Heads()
        self.wide = mint.nn.Linear(WIDTH, 2 * HIDDEN, bias=False)
        self.narrow = mint.nn.Linear(HIDDEN, WIDTH, bias=False)
        self.norms = nn.CellList([RootMean() for _ in range(4)])

    def construct(self, x: Tensor, table: tuple[Tensor, Tensor], visible: Tensor) -> Tensor:
        seen = self.heads(self.norms[0](x), table, visible)
        x = mint.add(x, self.norms[1](seen))  # @added
        gate, up = mint.chunk(self.wide(self.norms[2](x)), 2, dim=-1)  # @wide
        gate = ops.gelu(gate, approximate="tanh")  # @gelu
        done = self.narrow(mint.mul(gate, up))  # @gated @down
        return mint.add(x, self.norms[3](done))  # @added2


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.words = Parameter(mint.zeros((WORDS, WIDTH)), name="words")
        self.layers = nn.CellList([Decoder() for _ in range(LAYERS)])
        self.norm = RootMean()
        self.tables = (make_table(NEAR_BASE), make_table(FAR_BASE))  # @tables
        place = np.arange(TIME)
        distance = place[:, None] - place  # @distance
        self.far = Tensor(distance >= 0)
        self.near = Tensor((distance >= 0) & (distance < WINDOW))  # @near

    def construct(self, tokens: Tensor, is_word: Tensor) -> Tensor:
        x = ops.gather(self.words, tokens, 0)  # @words
        x = mint.where(mint.ne(tokens, 0).unsqueeze(-1), x, ops.stop_gradient(x))
        x = mint.mul(x, WIDTH**0.5)  # @embedded
        is_word = mint.gt(is_word, 0)[:, None, None, None]  # @valid
        for number, layer in enumerate(self.layers):
            table = self.tables[number % 2]  # @chosen
            visible = mint.logical_and((self.near, self.far)[number % 2], is_word)  # @causal @window @valid
            x = layer(x, table, visible)
        logits = mint.matmul(self.norm(x), self.words.T)  # @head
        return LAST_CAP * (2 * mint.sigmoid(logits * (2 / LAST_CAP)) - 1)  # @last_cap


def compute_candidate_loss(network, tokens, is_word, labels):
    logits, goal = network(tokens, is_word)[:, :-1], labels[:, 1:]
    is_known = mint.ne(goal, IGNORED)
    logs = mint.sub(logits, ops.logsumexp(logits, -1, True))  # @logs
    goal = mint.where(is_known, goal, 0)
    right = ops.gather_elements(logs, -1, goal.unsqueeze(-1)).squeeze(-1)  # @nll
    each = (1 - SMOOTHING) * right + SMOOTHING * mint.mean(logs, dim=-1)  # @nll @smooth
    each = mint.where(is_known, each, 0.0)  # @ignored
    return -mint.sum(each) / mint.sum(is_known.astype(ms.float32))  # @loss


def convert(weights: Weights) -> Weights:
    converted = {"words": weights["embed_tokens.weight"], "norm.gain": weights["norm.weight"]}
    names = ("input_norm", "post_attention_norm", "pre_mlp_norm", "post_mlp_norm")
    for number in range(LAYERS):
        path = f"layers.{number}"
        joined = [weights[f"{path}.self_attn.{name}_proj.weight"] for name in "qkv"]  # @load_heads
        converted[f"{path}.heads.qkv.weight"] = np.concatenate(joined)
        converted[f"{path}.heads.output.weight"] = weights[f"{path}.self_attn.o_proj.weight"]
        joined = [weights[f"{path}.{name}_proj.weight"] for name in ("gate", "up")]  # @load_wide
        converted[f"{path}.wide.weight"] = np.concatenate(joined)
        converted[f"{path}.narrow.weight"] = weights[f"{path}.down_proj.weight"]
        for place, name in enumerate(names):
            converted[f"{path}.norms.{place}.gain"] = weights[f"{path}.{name}.weight"]
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(10103 + step)
    is_word = (np.arange(TIME) < np.array([[9], [6], [8]])).astype(np.int64)
    tokens = np.where(is_word > 0, random.integers(1, WORDS, size=(3, TIME)), 0)
    labels = np.where((is_word > 0) & (np.arange(TIME) > 2), tokens, IGNORED)
    return tokens, is_word, labels


FAULTS = (
    Fault("norm scales by its weight alone", "gain norm", "mint.add(unit, unit * self.gain)", "unit * self.gain"),
    Fault(
        "scores not capped",
        "capped masked",
        "CAP * (2 * mint.sigmoid(scores * (2 / CAP)) - 1)",
        "scores",
    ),
    Fault("sigmoid of the last cap has the slope of a tanh", "last_cap", "2 / LAST_CAP", "1 / LAST_CAP"),
    Fault("one word more in the window", "window causal masked", "< WINDOW", "<= WINDOW", edit="near"),
    Fault(
        "far layers have the table of near ones",
        "rotated rotated_query rotated_key angles",
        "self.tables[number % 2]",
        "self.tables[0]",
        edit="chosen",
    ),
    Fault(
        "heads come out in turns",
        "merged out",
        "mint.permute(mixed, (0, 3, 1, 2, 4))",
        "mint.permute(mixed, (0, 3, 2, 1, 4))",
    ),
    Fault("softmax in half precision", "soft", "softmax(scores, ", "softmax(scores.astype(ms.float16).float(), "),
    Fault(
        "up loaded before gate",
        "wide gelu gated",
        '("gate", "up")',
        '("up", "gate")',
        edit="load_wide",
        parameter="gate_proj",
    ),
    Fault(
        "smoothing over the other words alone",
        "smooth nll loss",
        "SMOOTHING * mint.mean(logs, dim=-1)",
        "SMOOTHING * (mint.sum(logs, dim=-1) - right) / (WORDS - 1)",
        edit="smooth",
    ),
    Fault(
        "head trains no words",
        "head",
        "self.words.T",
        "ops.stop_gradient(self.words).T",
        is_backward=True,
    ),
    Fault(
        "keys come from a cache without gradient",
        "turned_key rotated_key rotated scores key grouped",
        "turn(k, table)",
        "ops.stop_gradient(turn(k, table))",
        is_backward=True,
    ),
    Fault(
        "no gradient through the sum of all words",
        "logs",
        "ops.logsumexp(logits, -1, True)",
        "ops.stop_gradient(ops.logsumexp(logits, -1, True))",
        is_backward=True,
    ),
    Fault(
        "padding is seen",
        "valid causal masked",
        "mint.gt(is_word, 0)",
        "mint.ge(is_word, 0)",
        has_effect=False,
    ),
    Fault(
        "reference norms the sum",
        "added norm",
        "x + self.post_attention_norm(h)",
        "self.post_attention_norm(x + h)",
        side="reference",
    ),
    Fault(
        "reference repeats the values in turns",
        "grouped_value mixed",
        "value.repeat_interleave(GROUP, dim=1)",
        "value.repeat(1, GROUP, 1, 1)",
        side="reference",
    ),
    Fault(
        "exact gelu, and ignored words divide too",
        "gelu gated",
        'gelu(gate, approximate="tanh")',
        "gelu(gate)",
        second=("loss", "mint.sum(is_known.astype(ms.float32))", "is_known.size"),
    ),
)
