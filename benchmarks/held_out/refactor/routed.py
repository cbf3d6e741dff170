"""A mixture of experts: a loop over those chosen; stacked weights and one sum over all experts after the refactor."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from held_out.fault import Fault
from held_out.weight import Weights

WORDS, WIDTH, HIDDEN, EXPERTS, CHOICE, LAYERS, TIME, BATCH = 19, 16, 20, 4, 2, 2, 6, 3
BALANCE, LEVEL, RATE, EPSILON = 0.3, 0.05, 0.4, 1e-5


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.w3 = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.w2 = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))  # @wide @gated @narrow @shared


class SparseMoeBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.expert_list = nn.ModuleList([Expert() for _ in range(EXPERTS)])
        self.shared_expert, self.shared_expert_gate = Expert(), nn.Linear(WIDTH, 1, bias=False)
        self.register_buffer("score_correction_bias", torch.zeros(EXPERTS), persistent=False)

    def forward(self, hidden_states):
        batch, time, width = hidden_states.shape
        hidden_states = hidden_states.view(-1, width)
        router_logits = self.gate(hidden_states).float()  # @router
        routing_weights = F.softmax(router_logits, dim=1)  # @weights
        _, selected = torch.topk(router_logits + self.score_correction_bias, CHOICE, dim=-1)  # @chosen
        routing_weights = routing_weights.gather(1, selected)  # @weights
        routing_weights = routing_weights / routing_weights.sum(dim=-1, keepdim=True)  # @weights
        routing_weights = routing_weights.to(hidden_states.dtype)
        final = torch.zeros_like(hidden_states)
        expert_mask = F.one_hot(selected, num_classes=EXPERTS).permute(2, 1, 0)  # @spread
        for expert in range(EXPERTS):
            place, token = torch.where(expert_mask[expert])
            current = self.expert_list[expert](hidden_states[token])
            current = current * routing_weights[token, place, None]  # @spread @combined
            final.index_add_(0, token, current.to(hidden_states.dtype))  # @combined
        shared = self.shared_expert(hidden_states)
        final = final + torch.sigmoid(self.shared_expert_gate(hidden_states)) * shared  # @shared_gate @joined
        with torch.no_grad():
            load = F.one_hot(selected.flatten(), EXPERTS).sum(0).float()  # @load
            self.score_correction_bias += RATE * torch.sign(load.mean() - load)  # @moved
        return final.view(batch, time, width), router_logits, selected


class DecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn_norm, self.ffn_norm = nn.LayerNorm(WIDTH, eps=EPSILON), nn.LayerNorm(WIDTH, eps=EPSILON)
        self.query, self.key = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = SparseMoeBlock()

    def forward(self, x):
        h = self.attn_norm(x)
        scores = self.query(h) @ self.key(h).transpose(1, 2) / WIDTH**0.5  # @query @key @scores
        hidden = torch.ones(TIME, TIME, dtype=torch.bool).triu(1)  # @causal
        chances = scores.masked_fill(hidden, float("-inf")).softmax(-1)  # @masked @soft
        x = x + chances @ self.value(h)  # @value @mixed @added
        y, router_logits, selected = self.mlp(self.ffn_norm(x))
        return x + y, router_logits, selected  # @added2


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.layers = nn.ModuleList([DecoderLayer() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH, eps=EPSILON)

    def forward(self, tokens):
        x, routes = self.embed(tokens), []
        for layer in self.layers:
            x, router_logits, selected = layer(x)
            routes.append((router_logits, selected))
        return self.head(self.norm(x)), routes  # @head


def load_balancing_loss(router_logits, selected):
    routing_weights = F.softmax(router_logits, dim=-1)  # @chance
    expert_mask = F.one_hot(selected, EXPERTS).float()  # @counted
    tokens_per_expert = expert_mask.mean(dim=0)  # @counted @share
    router_prob_per_expert = routing_weights.mean(dim=0)  # @chance
    return EXPERTS * torch.sum(tokens_per_expert * router_prob_per_expert.unsqueeze(0))  # @balance


def compute_reference_loss(network, tokens, goal):
    logits, routes = network(tokens)
    loss = F.cross_entropy(logits.float().view(-1, WORDS), goal.view(-1))  # @words
    balance = torch.stack([load_balancing_loss(*route) for route in routes]).mean()  # @layers
    level = torch.stack([torch.logsumexp(one, dim=-1).pow(2).mean() for one, _ in routes]).mean()  # @level @layers
    return loss + BALANCE * balance + LEVEL * level  # @loss


class Experts(nn.Module):
    """All of them at once: w13 gives gate and up, w2 the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Parameter(torch.zeros(WIDTH, EXPERTS))
        self.w13 = nn.Parameter(torch.zeros(EXPERTS, 2 * HIDDEN, WIDTH))
        self.w2 = nn.Parameter(torch.zeros(EXPERTS, HIDDEN, WIDTH))
        self.common13, self.common2 = nn.Linear(WIDTH, 2 * HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False)
        self.common_gate = nn.Linear(WIDTH, 1, bias=False)
        self.register_buffer("bias", torch.zeros(EXPERTS), persistent=False)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = torch.mm(x, self.router).float()  # @router
        chosen = (logits + self.bias).topk(CHOICE, dim=-1).indices  # @chosen
        weight = logits.gather(1, chosen).softmax(dim=-1)  # @weights
        combine = torch.zeros_like(logits).scatter(1, chosen, weight)  # @spread
        load = torch.zeros_like(logits).scatter(1, chosen, 1.0).sum(dim=0)  # @load @counted
        self.balance(load)
        chance = logits.softmax(dim=-1).mean(dim=0)  # @chance
        share = load / len(x)  # @share
        aux = EXPERTS * torch.dot(share, chance)  # @balance
        return combine, aux, logits.logsumexp(dim=-1).square().mean()  # @level

    @torch.no_grad()
    def balance(self, load: Tensor) -> None:
        self.bias.add_(torch.sign(load.mean() - load), alpha=RATE)  # @moved

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat = x.flatten(0, 1)
        combine, aux, level = self.route(flat)
        gate, up = torch.einsum("td,ehd->eth", flat, self.w13).chunk(2, dim=-1)  # @wide
        each = torch.bmm(F.silu(gate) * up, self.w2)  # @gated @narrow
        out = torch.einsum("etd,te->td", each, combine.to(each.dtype))  # @combined
        gate, up = self.common13(flat).split(HIDDEN, dim=-1)  # @wide @shared
        common = self.common2(F.silu(gate) * up)  # @gated @narrow @shared
        out = torch.addcmul(out, self.common_gate(flat).sigmoid(), common)  # @shared_gate @joined
        return out.view_as(x), aux, level


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, EPSILON), nn.LayerNorm(WIDTH, EPSILON)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.moe = Experts()

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)  # @query @key @value
        mask = torch.full((TIME, TIME), torch.finfo(q.dtype).min, dtype=q.dtype).triu(1)  # @causal
        scores = torch.baddbmm(mask, q, k.mT, alpha=WIDTH**-0.5)  # @scores @masked
        return torch.bmm(scores.softmax(dim=-1).to(v.dtype), v)  # @soft @mixed

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = x + self.attend(self.norm1(x))  # @added
        y, aux, level = self.moe(self.norm2(x))
        return x + y, aux, level  # @added2


class Candidate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(WORDS, WIDTH), nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.output = nn.LayerNorm(WIDTH, EPSILON), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.words(tokens)
        extra = 0.0
        for block in self.blocks:
            x, aux, level = block(x)
            extra = extra + (BALANCE * aux + LEVEL * level) / LAYERS  # @layers @loss
        return self.output(self.norm(x)), extra  # @head


def compute_candidate_loss(network, tokens, goal):
    logits, extra = network(tokens)
    return F.cross_entropy(logits.float().flatten(0, 1), goal.flatten()) + extra  # @words @loss


def convert(weights: Weights) -> Weights:
    converted = {"words.weight": weights["embed.weight"], "output.weight": weights["head.weight"]}
    converted |= {f"norm.{word}": weights[f"norm.{word}"] for word in ("weight", "bias")}
    for number in range(LAYERS):
        old = {name.removeprefix(f"layers.{number}."): array for name, array in weights.items()}
        path = f"blocks.{number}"
        converted |= {f"{path}.norm1.{word}": old[f"attn_norm.{word}"] for word in ("weight", "bias")}
        converted |= {f"{path}.norm2.{word}": old[f"ffn_norm.{word}"] for word in ("weight", "bias")}
        parts = [old[f"{name}.weight"] for name in ("query", "key", "value")]
        converted[f"{path}.qkv.weight"] = np.concatenate(parts)
        experts = [f"mlp.expert_list.{expert}" for expert in range(EXPERTS)]
        wide = [np.concatenate([old[f"{one}.w1.weight"], old[f"{one}.w3.weight"]]) for one in experts]
        converted[f"{path}.moe.w13"] = np.stack(wide)
        converted[f"{path}.moe.w2"] = np.stack([old[f"{one}.w2.weight"].T for one in experts])
        converted[f"{path}.moe.router"] = old["mlp.gate.weight"].T
        shared = [old["mlp.shared_expert.w1.weight"], old["mlp.shared_expert.w3.weight"]]
        converted[f"{path}.moe.common13.weight"] = np.concatenate(shared)
        converted[f"{path}.moe.common2.weight"] = old["mlp.shared_expert.w2.weight"]
        converted[f"{path}.moe.common_gate.weight"] = old["mlp.shared_expert_gate.weight"]
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(8430 + step)
    words = random.integers(WORDS, size=(BATCH, TIME + 1))
    return words[:, :-1].copy(), words[:, 1:].copy()


FAULTS = (
    Fault("one word ahead is seen", "causal masked scores", ".triu(1)", ".triu(2)"),
    Fault("scores not scaled", "scores", ", alpha=WIDTH**-0.5", ""),
    Fault(
        "weights do not sum to one",
        "weights",
        "logits.gather(1, chosen).softmax(dim=-1)",
        "logits.softmax(dim=-1).gather(1, chosen)",
    ),
    Fault(
        "bias of the choice in the weights",
        "weights",
        "logits.gather(1, chosen)",
        "(logits + self.bias).gather(1, chosen)",
        steps=2,
        first_step=1,
    ),
    Fault(
        "bias moves to the crowded expert",
        "moved chosen",
        "load.mean() - load",
        "load - load.mean()",
        steps=2,
        first_step=1,
    ),
    Fault("chosen experts count the same", "combined", "combine.to(each.dtype)", "(combine > 0).to(each.dtype)"),
    Fault(
        "router learns from the balance alone",
        "combined spread weights",
        "combine.to(each.dtype)",
        "combine.detach().to(each.dtype)",
        edit="combined",
        is_backward=True,
    ),
    Fault(
        "halves of the common expert exchanged", "shared gated", "gate, up = self.common13", "up, gate = self.common13"
    ),
    Fault(
        "gate of the common expert left out",
        "shared_gate joined",
        "self.common_gate(flat).sigmoid()",
        "self.common_gate(flat)",
    ),
    Fault("share of all choices", "share balance", "load / len(x)", "load / load.sum()"),
    Fault(
        "balance passes no gradient",
        "chance balance",
        "torch.dot(share, chance)",
        "torch.dot(share, chance.detach())",
        edit="balance",
        is_backward=True,
    ),
    Fault("reference does not square the level", "level", ".pow(2)", "", side="reference"),
)
