"""A decoder of language, eager and turned by halves; joined projections, complex numbers and checkpoints after it."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from held_out.fault import Fault
from held_out.weight import Weights

WORDS, WIDTH, HEADS, SHARED, SIZE, HIDDEN, LAYERS, TIME = 29, 32, 4, 2, 8, 48, 2, 9
GROUP, BASE, EPSILON, IGNORED, CHUNK = HEADS // SHARED, 10000.0, 1e-3, -100, 12


class LlamaRMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.variance_epsilon = EPSILON

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.float()
        variance = hidden_states.pow(2).mean(-1, keepdim=True)  # @norm
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)  # @norm
        return self.weight * hidden_states.to(input_dtype)  # @norm


def compute_cos_sin(position_ids, dtype):
    inv_freq = 1.0 / (BASE ** (torch.arange(0, SIZE, 2).float() / SIZE))  # @speeds
    freqs = torch.outer(position_ids.float(), inv_freq)  # @angles
    emb = torch.cat((freqs, freqs), dim=-1)
    return emb.cos().to(dtype), emb.sin().to(dtype)  # @angles


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)  # @rotated @rotated_key


def apply_rotary_pos_emb(q, k, cos, sin):
    q_embed = (q * cos) + (rotate_half(q) * sin)  # @rotated
    k_embed = (k * cos) + (rotate_half(k) * sin)  # @rotated_key
    return q_embed, k_embed


def repeat_kv(hidden_states):
    batch, heads, time, size = hidden_states.shape
    hidden_states = hidden_states[:, :, None, :, :].expand(batch, heads, GROUP, time, size)  # @grouped
    return hidden_states.reshape(batch, heads * GROUP, time, size)  # @grouped


class LlamaAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.k_proj = nn.Linear(WIDTH, SHARED * SIZE, bias=False)
        self.v_proj = nn.Linear(WIDTH, SHARED * SIZE, bias=False)
        self.o_proj = nn.Linear(HEADS * SIZE, WIDTH, bias=False)

    def forward(self, hidden_states, cos, sin, attention_mask):
        hidden_shape = (*hidden_states.shape[:-1], -1, SIZE)
        query_states = self.q_proj(hidden_states).view(hidden_shape).transpose(1, 2)  # @query
        key_states = self.k_proj(hidden_states).view(hidden_shape).transpose(1, 2)  # @key
        value_states = self.v_proj(hidden_states).view(hidden_shape).transpose(1, 2)  # @value
        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)  # @rotated @rotated_key
        key_states, value_states = repeat_kv(key_states), repeat_kv(value_states)  # @grouped
        attn_weights = torch.matmul(query_states, key_states.transpose(2, 3)) * SIZE**-0.5  # @scores
        attn_weights = attn_weights + attention_mask  # @masked
        attn_weights = F.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query_states.dtype)  # @soft
        attn_output = torch.matmul(attn_weights, value_states)  # @mixed
        attn_output = attn_output.transpose(1, 2).contiguous()  # @laid
        return self.o_proj(attn_output.reshape(*hidden_states.shape[:-1], -1))  # @laid @out


class LlamaMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up_proj = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down_proj = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))  # @wide @gated @down


class LlamaDecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = LlamaAttention(), LlamaMLP()
        self.input_layernorm, self.post_attention_layernorm = LlamaRMSNorm(), LlamaRMSNorm()

    def forward(self, hidden_states, cos, sin, attention_mask):
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states = self.self_attn(hidden_states, cos, sin, attention_mask)
        hidden_states = residual + hidden_states  # @added
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return residual + hidden_states  # @added2


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([LlamaDecoderLayer() for _ in range(LAYERS)])
        self.norm = LlamaRMSNorm()
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, input_ids):
        hidden_states = self.embed_tokens(input_ids)  # @embedded
        position_ids = torch.arange(input_ids.shape[1])  # @places
        cos, sin = compute_cos_sin(position_ids, hidden_states.dtype)
        lowest = torch.finfo(hidden_states.dtype).min
        causal_mask = torch.full((TIME, TIME), lowest, dtype=hidden_states.dtype).triu(1)  # @causal
        for layer in self.layers:
            hidden_states = layer(hidden_states, cos, sin, causal_mask)
        return self.lm_head(self.norm(hidden_states))  # @head


def compute_reference_loss(network, input_ids, labels):
    logits = network(input_ids)
    logits = logits.float()
    shift_logits = logits[..., :-1, :].contiguous()  # @shifted
    shift_labels = labels[..., 1:].contiguous()  # @shifted
    return F.cross_entropy(shift_logits.view(-1, WORDS), shift_labels.view(-1), ignore_index=IGNORED)  # @loss


def precompute_freqs(end: int) -> Tensor:
    speeds = BASE ** (-torch.arange(0, SIZE, 2)[: SIZE // 2].float() / SIZE)  # @speeds
    angles = torch.outer(torch.arange(end).float(), speeds)  # @angles @places
    return torch.polar(torch.ones_like(angles), angles)  # @angles


def turn(x: Tensor, freqs: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * freqs[:, None]).flatten(3).type_as(x)  # @rotated @rotated_key


class TransformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wqkv = nn.Linear(WIDTH, (HEADS + 2 * SHARED) * SIZE, bias=False)
        self.wo = nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.w13 = nn.Linear(WIDTH, 2 * HIDDEN, bias=False)
        self.w2 = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.norm1, self.norm2 = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))

    def attend(self, x: Tensor, freqs: Tensor) -> Tensor:
        bsz, time, _ = x.shape
        sizes = [HEADS * SIZE, SHARED * SIZE, SHARED * SIZE]
        q, k, v = self.wqkv(x).split(sizes, dim=-1)  # @query @key @value @parted
        q = turn(q.view(bsz, time, HEADS, SIZE), freqs).transpose(1, 2)  # @rotated
        k = turn(k.view(bsz, time, SHARED, SIZE), freqs).transpose(1, 2)  # @rotated_key
        v = v.view(bsz, time, SHARED, SIZE).transpose(1, 2)  # @value
        k, v = (one.repeat_interleave(GROUP, dim=1) for one in (k, v))  # @grouped
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # @scores @masked @soft @mixed @causal
        return self.wo(y.transpose(1, 2).reshape(bsz, time, -1))  # @laid @out

    def forward(self, x: Tensor, freqs: Tensor) -> Tensor:
        h = x + self.attend(F.rms_norm(x, (WIDTH,), self.norm1, EPSILON), freqs)  # @added @norm @norm1
        gate, up = self.w13(F.rms_norm(h, (WIDTH,), self.norm2, EPSILON)).chunk(2, dim=-1)  # @wide @norm
        return h + self.w2(F.silu(gate) * up)  # @gated @down @added2


class Candidate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([TransformerBlock() for _ in range(LAYERS)])
        self.norm = nn.Parameter(torch.ones(WIDTH))
        self.output = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        freqs = precompute_freqs(tokens.shape[1])
        h = self.tok_embeddings(tokens)  # @embedded
        for layer in self.layers:
            h = checkpoint(layer, h, freqs, use_reentrant=False)
        return F.rms_norm(h, (WIDTH,), self.norm, EPSILON)  # @norm


def compute_candidate_loss(network, tokens, labels):
    h = network(tokens).flatten(0, 1)
    goal = F.pad(labels, (0, 1), value=IGNORED)[:, 1:].flatten()  # @shifted
    count = (goal != IGNORED).sum()  # @count
    loss = h.new_zeros((), dtype=torch.float32)
    for rows, words in zip(h.split(CHUNK), goal.split(CHUNK), strict=True):
        logits = network.output(rows).float()  # @head
        part = F.cross_entropy(logits, words, ignore_index=IGNORED, reduction="sum")  # @loss @part
        loss = loss + part / count  # @loss @summed
    return loss


def interleave(weight: np.ndarray) -> np.ndarray:
    """Rows of each head: the two halves become pairs."""
    halves = weight.reshape(-1, 2, SIZE // 2, WIDTH)
    return halves.swapaxes(1, 2).reshape(weight.shape)


def convert(weights: Weights) -> Weights:
    converted = {"tok_embeddings.weight": weights["embed_tokens.weight"], "norm": weights["norm.weight"]}
    converted["output.weight"] = weights["lm_head.weight"]
    for number in range(LAYERS):
        path = f"layers.{number}"
        old = {name.removeprefix(f"{path}."): array for name, array in weights.items() if name.startswith(path)}
        query, key = old["self_attn.q_proj.weight"], old["self_attn.k_proj.weight"]
        query, key = interleave(query), interleave(key)  # @load
        converted[f"{path}.wqkv.weight"] = np.concatenate([query, key, old["self_attn.v_proj.weight"]])
        converted[f"{path}.wo.weight"] = old["self_attn.o_proj.weight"]
        converted[f"{path}.w13.weight"] = np.concatenate([old["mlp.gate_proj.weight"], old["mlp.up_proj.weight"]])
        converted[f"{path}.w2.weight"] = old["mlp.down_proj.weight"]
        converted[f"{path}.norm1"] = old["input_layernorm.weight"]
        converted[f"{path}.norm2"] = old["post_attention_layernorm.weight"]
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(8100 + step)
    tokens = random.integers(WORDS, size=(4, TIME))
    lengths = np.array([TIME, 7, 8, 5])
    return tokens, np.where(np.arange(TIME) < lengths[:, None], tokens, IGNORED)


FAULTS = (
    Fault("epsilon of the function", "norm", "self.norm1, EPSILON)", "self.norm1)", edit="norm1"),
    Fault(
        "rows of the keys stay in halves",
        "key rotated_key",
        "interleave(query), interleave(key)",
        "interleave(query), key",
        edit="load",
        parameter="k_proj",
    ),
    Fault("speeds by half the size", "speeds angles", "float() / SIZE)", "float() / (SIZE // 2))"),
    Fault(
        "places counted from one", "places angles", "torch.arange(end)", "torch.arange(1, end + 1)", has_effect=False
    ),
    Fault("keys and values exchanged", "parted key value rotated_key", "q, k, v =", "q, v, k ="),
    Fault(
        "keys repeated as a whole",
        "grouped scores",
        "one.repeat_interleave(GROUP, dim=1)",
        "one.repeat(1, GROUP, 1, 1)",
    ),
    Fault("later words are seen", "causal masked", ", is_causal=True", ""),
    Fault("heads not brought back", "laid", "y.transpose(1, 2).reshape(bsz, time, -1)", "y.reshape(bsz, time, -1)"),
    Fault("activation of the other half", "gated", "F.silu(gate) * up", "gate * F.silu(up)"),
    Fault("sum with the input of the block", "added2", "return h + self.w2", "return x + self.w2"),
    Fault(
        "reference counts padding",
        "loss",
        ", ignore_index=IGNORED)",
        ', ignore_index=IGNORED, reduction="sum") / shift_labels.numel()',
        side="reference",
    ),
    Fault(
        "earlier parts of the loss cut off",
        "summed loss part",
        "loss + part / count",
        "loss.detach() + part / count",
        is_backward=True,
    ),
)
