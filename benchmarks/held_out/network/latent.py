"""Attention over a compressed past, then experts whose offsets balance them; the port never unfolds keys and values."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

WORDS, WIDTH, HEADS, TIME, BATCH, HIDDEN, SMALL, LAYERS = 21, 16, 3, 8, 3, 24, 10, 3
QUERY_RANK, RANK, PLAIN, TURNED, VALUE, BASE, EPSILON = 10, 8, 6, 4, 5, 1000.0, 1e-6
EXPERTS, GROUPS, KEPT_GROUPS, TOP, FACTOR, BALANCE, SPEED = 6, 3, 2, 2, 1.8, 0.3, 0.15
STRETCH = 0.1 * math.log(40.0) + 1.0
OFFSETS = np.array([[0.1, -0.2, 0.15, 0.05, -0.1, 0.2], [-0.15, 0.1, 0.2, -0.1, 0.05, -0.05]], np.float32)


class RMSNorm(torch.nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)  # @norm


def apply_rotary_emb(x, freqs_cis):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))  # @turned @turned_query @turned_key
    turned = pairs * freqs_cis.view(1, TIME, 1, -1)  # @turned @turned_query @turned_key
    return torch.view_as_real(turned).flatten(3)  # @turned @turned_query @turned_key


class MLA(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_a_proj = torch.nn.Linear(WIDTH, QUERY_RANK, bias=False)
        self.q_a_layernorm = RMSNorm(QUERY_RANK)
        self.q_b_proj = torch.nn.Linear(QUERY_RANK, HEADS * (PLAIN + TURNED), bias=False)
        self.kv_a_proj_with_mqa = torch.nn.Linear(WIDTH, RANK + TURNED, bias=False)
        self.kv_a_layernorm = RMSNorm(RANK)
        self.kv_b_proj = torch.nn.Linear(RANK, HEADS * (PLAIN + VALUE), bias=False)
        self.o_proj = torch.nn.Linear(HEADS * VALUE, WIDTH, bias=False)
        self.softmax_scale = (PLAIN + TURNED) ** -0.5 * STRETCH * STRETCH

    def forward(self, x, freqs_cis, mask):
        batch, time, _ = x.shape
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))  # @query_small @query
        q_nope, q_pe = q.view(batch, time, HEADS, -1).split([PLAIN, TURNED], dim=-1)  # @parts
        kv, k_pe = self.kv_a_proj_with_mqa(x).split([RANK, TURNED], dim=-1)  # @small @turned_part
        q_pe, k_pe = apply_rotary_emb(q_pe, freqs_cis), apply_rotary_emb(k_pe.unsqueeze(2), freqs_cis)
        kv = self.kv_b_proj(self.kv_a_layernorm(kv)).view(batch, time, HEADS, PLAIN + VALUE)  # @unfolded @keyed
        k_nope, v = kv.split([PLAIN, VALUE], dim=-1)  # @unfolded
        q = torch.cat([q_nope, q_pe], dim=-1)  # @joined
        k = torch.cat([k_nope, k_pe.expand(-1, -1, HEADS, -1)], dim=-1)  # @joined @scores_turned
        scores = torch.einsum("bshd,bthd->bsht", q, k) * self.softmax_scale  # @scores @scores_turned @keyed @scale
        scores = scores + mask[None, :, None]  # @masked
        scores = scores.softmax(dim=-1, dtype=torch.float32)  # @soft
        x = torch.einsum("bsht,bthd->bshd", scores, v)  # @mixed @valued
        return self.o_proj(x.flatten(2))  # @out


class MLP(torch.nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.w1 = torch.nn.Linear(WIDTH, hidden, bias=False)
        self.w2 = torch.nn.Linear(hidden, WIDTH, bias=False)
        self.w3 = torch.nn.Linear(WIDTH, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))  # @expert_in @expert_gate @expert_out @shared @dense


class Gate(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(EXPERTS, WIDTH))
        self.register_buffer("bias", torch.from_numpy(OFFSETS[number].copy()))

    def forward(self, x):
        scores = torch.sigmoid(F.linear(x, self.weight))  # @gate
        biased = scores + self.bias  # @biased
        groups = biased.view(len(x), GROUPS, -1)
        strength = groups.topk(2, dim=-1)[0].sum(dim=-1)  # @strength
        kept = torch.zeros_like(strength).scatter_(1, strength.topk(KEPT_GROUPS, dim=-1)[1], 1.0)  # @kept
        biased = groups.masked_fill(kept.unsqueeze(-1) == 0, -1e9).flatten(1)  # @hidden
        indices = biased.topk(TOP, dim=-1)[1]  # @chosen
        weights = scores.gather(1, indices)  # @weights
        weights = weights / weights.sum(dim=-1, keepdim=True) * FACTOR  # @shares @factor
        return scores, weights, indices

    @torch.no_grad()
    def balance(self, indices):
        counts = torch.bincount(indices.flatten(), minlength=EXPERTS).float()  # @counted
        self.bias += SPEED * torch.sign(counts.mean() - counts)  # @offset


class MoE(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.gate = Gate(number)
        self.experts = torch.nn.ModuleList([MLP(SMALL) for _ in range(EXPERTS)])
        self.shared_experts = MLP(2 * SMALL)

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, 1)
        scores, weights, indices = self.gate(x)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(indices == number)  # @picked
            y[rows] += expert(x[rows]) * weights[rows, places, None]  # @picked @weighed
        used = F.one_hot(indices, EXPERTS).sum(dim=1).float().view(*shape[:2], EXPERTS)  # @used
        used = used.mean(dim=1) * EXPERTS / TOP  # @frequent
        chance = (scores / scores.sum(dim=-1, keepdim=True)).view(*shape[:2], EXPERTS).mean(dim=1)  # @chance
        auxiliary = (used * chance).sum(dim=1).mean()  # @auxiliary
        self.gate.balance(indices)
        return (y + self.shared_experts(x)).view(shape), auxiliary  # @both


class Block(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.attn, self.attn_norm, self.ffn_norm = MLA(), RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.ffn = MLP(HIDDEN) if number == 0 else MoE(number - 1)

    def forward(self, x, freqs_cis, mask):
        x = x + self.attn(self.attn_norm(x), freqs_cis, mask)  # @added
        found = self.ffn(self.ffn_norm(x))
        y, auxiliary = found if isinstance(found, tuple) else (found, 0.0)
        return x + y, auxiliary  # @added2


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList([Block(number) for number in range(LAYERS)])
        self.norm, self.head = RMSNorm(WIDTH), torch.nn.Linear(WIDTH, WORDS, bias=False)
        freqs = 1.0 / BASE ** (torch.arange(0, TURNED, 2).float() / TURNED)
        angles = torch.outer(torch.arange(TIME).float(), freqs)
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        mask = torch.full((TIME, TIME), float("-inf")).triu(1)  # @mask
        total = 0.0
        for layer in self.layers:
            x, auxiliary = layer(x, self.freqs_cis, mask)
            total = total + auxiliary  # @total
        return self.head(self.norm(x)), total  # @head


def compute_reference_loss(network, tokens, labels):
    logits, auxiliary = network(tokens)
    return F.cross_entropy(logits.view(-1, WORDS), labels.view(-1)) + BALANCE * auxiliary  # @entropy @loss


class Root(nn.Cell):
    def __init__(self, width) -> None:
        super().__init__()
        self.scale = Parameter(ops.ones((width,)), name="scale")

    def construct(self, x: Tensor) -> Tensor:
        size = ops.sqrt(ops.square(x).mean(-1, keep_dims=True) + EPSILON)  # @norm
        return x / size * self.scale  # @norm


class LatentAttention(nn.Cell):
    """The key's matrix goes to the queries, the value's behind the mean: scores are between queries and the latents."""

    def __init__(self) -> None:
        super().__init__()
        self.down_query, self.query_norm = nn.Dense(WIDTH, QUERY_RANK, has_bias=False), Root(QUERY_RANK)
        self.up_query = nn.Dense(QUERY_RANK, HEADS * (PLAIN + TURNED), has_bias=False)
        self.down, self.down_norm = nn.Dense(WIDTH, RANK, has_bias=False), Root(RANK)
        self.key_turned = nn.Dense(WIDTH, TURNED, has_bias=False)
        self.up_key = Parameter(ops.zeros((HEADS, PLAIN, RANK)), name="up_key")
        self.up_value = Parameter(ops.zeros((HEADS, RANK, VALUE)), name="up_value")
        self.leave = nn.Dense(HEADS * VALUE, WIDTH, has_bias=False)
        angles = np.arange(TIME)[:, None] * BASE ** (-np.arange(0, TURNED, 2) / TURNED)  # @angles_made
        self.cos, self.sin = Tensor(np.cos(angles), ms.float32), Tensor(np.sin(angles), ms.float32)
        self.ahead = Tensor(np.triu(np.full((TIME, TIME), -1e9), 1), ms.float32)  # @ahead
        self.scale = STRETCH**2 / math.sqrt(PLAIN + TURNED)  # @scale_made

    def turn(self, x: Tensor) -> Tensor:
        """Halves: rows of the weights came in pairs."""
        first, second = ops.split(x, TURNED // 2, axis=-1)
        one = first * self.cos - second * self.sin  # @turned @turned_query @turned_key
        two = first * self.sin + second * self.cos  # @turned @turned_query @turned_key
        return ops.cat((one, two), -1)

    def construct(self, x: Tensor) -> Tensor:
        query = self.up_query(self.query_norm(self.down_query(x)))  # @query_small @query
        query = query.reshape(-1, TIME, HEADS, PLAIN + TURNED).swapaxes(1, 2)
        plain, turned = query[..., :PLAIN], self.turn(query[..., PLAIN:])  # @parts
        latent = self.down_norm(self.down(x)).expand_dims(1)  # @small
        key = self.turn(self.key_turned(x).expand_dims(1))  # @turned_part
        folded = ops.matmul(plain, self.up_key)  # @unfolded @keyed
        scores = ops.matmul(folded, latent.swapaxes(-1, -2))  # @scores @keyed @joined
        turned = ops.matmul(turned, key.swapaxes(-1, -2))  # @scores_turned @joined
        scores = (scores + turned) * self.scale + self.ahead  # @scale @masked @mask
        mean = ops.matmul(ops.softmax(scores, -1), latent)  # @soft @mixed
        value = ops.matmul(mean, self.up_value)  # @unfolded @valued
        return self.leave(value.swapaxes(1, 2).reshape(x.shape[0], TIME, -1))  # @out


class Swish(nn.Cell):
    def __init__(self, hidden) -> None:
        super().__init__()
        self.both = nn.Dense(WIDTH, 2 * hidden, has_bias=False)
        self.back = nn.Dense(hidden, WIDTH, has_bias=False)

    def construct(self, x: Tensor) -> Tensor:
        gate, up = ops.chunk(self.both(x), 2, -1)  # @shared @dense
        return self.back(ops.silu(gate) * up)  # @shared @dense


class Mixture(nn.Cell):
    """All experts see all tokens; those that were not chosen weigh nothing."""

    def __init__(self, number) -> None:
        super().__init__()
        self.gate = nn.Dense(WIDTH, EXPERTS, has_bias=False)
        self.offset = Tensor(OFFSETS[number])
        self.enter = Parameter(ops.zeros((EXPERTS, WIDTH, 2 * SMALL)), name="enter")
        self.leave = Parameter(ops.zeros((EXPERTS, SMALL, WIDTH)), name="leave")
        self.shared = Swish(2 * SMALL)

    def choose(self, scores: Tensor) -> Tensor:
        """Ones where an expert is chosen."""
        wanted = ops.stop_gradient(scores) + self.offset  # @biased
        strength = wanted.reshape(-1, GROUPS, EXPERTS // GROUPS).sum(-1)  # @strength
        _, best = ops.topk(strength, KEPT_GROUPS)  # @kept
        allowed = ops.one_hot(best, GROUPS).sum(1)  # @kept
        allowed = allowed.repeat_interleave(EXPERTS // GROUPS, 1) > 0  # @kept
        wanted = wanted.masked_fill(ops.logical_not(allowed), -1e9)  # @hidden
        _, chosen = ops.topk(wanted, TOP)  # @chosen
        return ops.one_hot(chosen, EXPERTS).sum(1).astype(ms.float32)  # @chosen @used

    def balance(self, chosen: Tensor) -> None:
        load = chosen.sum(0)  # @counted
        self.offset = self.offset - SPEED * ops.sign(load - load.mean())  # @offset

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.reshape(-1, WIDTH)
        scores = ops.sigmoid(self.gate(flat))  # @gate
        chosen = self.choose(scores)
        weights = scores * chosen  # @weights
        weights = weights / weights.sum(-1, keepdims=True)  # @shares
        weights = FACTOR * weights  # @factor
        gate, up = ops.chunk(ops.matmul(flat, self.enter), 2, -1)  # @expert_in @picked
        each = ops.matmul(ops.silu(gate) * up, self.leave)  # @expert_gate @expert_out
        routed = (each * weights.T.expand_dims(-1)).sum(0)  # @weighed
        share = scores / scores.sum(-1, keepdims=True)  # @chance
        share = share.reshape(-1, TIME, EXPERTS).mean(1)  # @chance
        load = chosen.reshape(-1, TIME, EXPERTS).mean(1)  # @frequent
        auxiliary = EXPERTS / TOP * (share * load).sum(-1).mean()  # @frequent @auxiliary
        self.balance(chosen)
        return (self.shared(flat) + routed).reshape(x.shape), auxiliary  # @both


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.attentions = nn.CellList([LatentAttention() for _ in range(LAYERS)])
        self.norms = nn.CellList([Root(WIDTH) for _ in range(2 * LAYERS + 1)])
        self.dense = Swish(HIDDEN)
        self.mixtures = nn.CellList([Mixture(number) for number in range(LAYERS - 1)])
        self.head = nn.Dense(WIDTH, WORDS, has_bias=False)

    def construct(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x, total = self.words(tokens), 0.0
        for number, attention in enumerate(self.attentions):
            x = x + attention(self.norms[2 * number](x))  # @added
            h = self.norms[2 * number + 1](x)
            if number == 0:
                x = x + self.dense(h)  # @added2
                continue
            found, auxiliary = self.mixtures[number - 1](h)
            x, total = x + found, total + auxiliary  # @added2 @total
        return self.head(self.norms[-1](x)), total  # @head


def compute_candidate_loss(network, tokens, labels):
    logits, auxiliary = network(tokens)
    logs = ops.log_softmax(logits, -1)  # @entropy
    right = ops.one_hot(labels, WORDS).astype(ms.float32)
    return -(logs * right).sum(-1).mean() + BALANCE * auxiliary  # @entropy @loss


def unpair(rows: np.ndarray) -> np.ndarray:
    """Rows that are turned: pairs become halves."""
    return np.concatenate([rows[..., 0::2, :], rows[..., 1::2, :]], axis=-2)


def convert(weights: Weights) -> Weights:
    converted = {"words.embedding_table": weights["embed.weight"], "head.weight": weights["head.weight"]}
    converted[f"norms.{2 * LAYERS}.scale"] = weights["norm.weight"]
    for number in range(LAYERS):
        path = f"layers.{number}."
        old = {name.removeprefix(path): array for name, array in weights.items() if name.startswith(path)}
        new = f"attentions.{number}"
        queries = old["attn.q_b_proj.weight"].reshape(HEADS, PLAIN + TURNED, QUERY_RANK)
        queries = np.concatenate([queries[:, :PLAIN], unpair(queries[:, PLAIN:])], axis=1)
        small, turned = np.split(old["attn.kv_a_proj_with_mqa.weight"], [RANK])
        unfold = old["attn.kv_b_proj.weight"].reshape(HEADS, PLAIN + VALUE, RANK)
        converted |= {
            f"{new}.down_query.weight": old["attn.q_a_proj.weight"],
            f"{new}.query_norm.scale": old["attn.q_a_layernorm.weight"],
            f"{new}.up_query.weight": queries.reshape(-1, QUERY_RANK),
            f"{new}.down.weight": small,
            f"{new}.down_norm.scale": old["attn.kv_a_layernorm.weight"],
            f"{new}.key_turned.weight": unpair(turned),  # @load_turned
            f"{new}.up_key": unfold[:, :PLAIN],
            f"{new}.up_value": unfold[:, PLAIN:].swapaxes(1, 2),
            f"{new}.leave.weight": old["attn.o_proj.weight"],
            f"norms.{2 * number}.scale": old["attn_norm.weight"],
            f"norms.{2 * number + 1}.scale": old["ffn_norm.weight"],
        }
        shared, path = ("dense", "ffn") if number == 0 else (f"mixtures.{number - 1}.shared", "ffn.shared_experts")
        converted[f"{shared}.both.weight"] = np.concatenate([old[f"{path}.w1.weight"], old[f"{path}.w3.weight"]])
        converted[f"{shared}.back.weight"] = old[f"{path}.w2.weight"]
        if number > 0:
            new = f"mixtures.{number - 1}"
            converted[f"{new}.gate.weight"] = old["ffn.gate.weight"]
            one, two, three = (
                np.stack([old[f"ffn.experts.{expert}.w{name}.weight"].T for expert in range(EXPERTS)])
                for name in (1, 2, 3)
            )
            converted |= {f"{new}.enter": np.concatenate([one, three], axis=2), f"{new}.leave": two}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(10200 + step)
    tokens = random.integers(WORDS, size=(BATCH, TIME + 1))
    return tokens[:, :-1].copy(), tokens[:, 1:].copy()


FAULTS = (
    Fault("scale without the stretch's square", "scale masked", "STRETCH**2", "STRETCH", edit="scale_made"),
    Fault(
        "turned rows of the key stay in pairs",
        "turned_part turned_key turned",
        "unpair(turned)",
        "turned",
        edit="load_turned",
        parameter="kv_a_proj_with_mqa",
    ),
    Fault(
        "turned part comes first in the query",
        "parts turned turned_query keyed",
        "query[..., :PLAIN], self.turn(query[..., PLAIN:])",
        "query[..., TURNED:], self.turn(query[..., :TURNED])",
    ),
    Fault(
        "latents are not normed",
        "norm small keyed scores unfolded",
        "self.down_norm(self.down(x))",
        "self.down(x)",
        edit="small",
    ),
    Fault("experts chosen without the offsets", "biased strength", "ops.stop_gradient(scores) + self.offset", "scores"),
    Fault(
        "groups by their best expert", "strength kept", "EXPERTS // GROUPS).sum(-1)", "EXPERTS // GROUPS).max(axis=-1)"
    ),
    Fault("weights with the offsets", "weights shares", "scores * chosen", "(scores + self.offset) * chosen"),
    Fault("hidden groups at minus one", "hidden", "allowed), -1e9", "allowed), -1.0", has_effect=False),
    Fault("offsets move away", "offset biased", "self.offset - SPEED", "self.offset + SPEED", steps=2, first_step=1),
    Fault(
        "chosen weights teach no gate",
        "weights shares gate",
        "scores * chosen",
        "ops.stop_gradient(scores) * chosen",
        is_backward=True,
    ),
    Fault(
        "shared expert sees what the router left",
        "shared both",
        "self.shared(flat) + routed",
        "self.shared(routed) + routed",
        edit="both",
    ),
    Fault(
        "balance teaches no gate",
        "chance auxiliary",
        "share = scores / scores.sum(-1, keepdims=True)",
        "share = ops.stop_gradient(scores / scores.sum(-1, keepdims=True))",
        is_backward=True,
    ),
    Fault(
        "reference weighs what enters the experts",
        "weighed expert_in picked",
        "expert(x[rows]) * weights[rows, places, None]",
        "expert(x[rows] * weights[rows, places, None])",
        side="reference",
    ),
    Fault(
        "reference turns the other way",
        "turned turned_query turned_key",
        "freqs_cis.view(1, TIME, 1, -1)",
        "freqs_cis.conj().view(1, TIME, 1, -1)",
        side="reference",
    ),
    Fault(
        "keys of the future at one place, and the factor forgotten",
        "masked mask scale soft",
        "(TIME, TIME), -1e9), 1)",
        "(TIME, TIME), -1e9), 2)",
        edit="ahead",
        second=("factor", "FACTOR * weights", "1.0 * weights"),
    ),
)
