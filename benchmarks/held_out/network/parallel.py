"""A decoder whose attention and feed-forward run beside each other: two small batches, clipped, or one large batch."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops
from mindspore.experimental import optim

from held_out.fault import Fault
from held_out.weight import Weights

VOCAB, WIDTH, HEADS, INNER, LAYERS, LENGTH, SMALL, PARTS = 23, 12, 3, 20, 2, 9, 3, 2
HEAD, CAP, NONE, Z, EPSILON = WIDTH // HEADS, 4.0, -100, 0.02, 1e-5
RATE, BETAS, ADAM, DECAY, LIMIT, WARM, TOTAL = 0.02, (0.9, 0.95), 1e-6, 0.5, 0.6, 2, 8


class ParallelBlock(torch.nn.Module):
    """One projection for queries, one key, one value and both halves of the feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH, eps=EPSILON)
        self.fused_dims = (WIDTH, HEAD, HEAD, 2 * INNER)
        self.fused = torch.nn.Linear(WIDTH, sum(self.fused_dims), bias=False)
        self.q_scale, self.k_scale = torch.nn.Parameter(torch.ones(HEAD)), torch.nn.Parameter(torch.ones(HEAD))
        self.attn_out = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.ff_out = torch.nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v, ff = self.fused(self.norm(x)).split(self.fused_dims, dim=-1)  # @norm @query @key @value @parted
        q = q.view(batch, length, HEADS, HEAD).transpose(1, 2)  # @heads
        q = F.rms_norm(q, (HEAD,), self.q_scale, eps=EPSILON)  # @q_norm
        k = F.rms_norm(k, (HEAD,), self.k_scale, eps=EPSILON)  # @k_norm
        sim = torch.einsum("bhid,bjd->bhij", q * HEAD**-0.5, k)  # @scaled @scores
        sim = CAP * torch.tanh(sim / CAP)  # @cap
        causal_mask = torch.ones((length, length), dtype=torch.bool).triu(1)
        sim = sim.masked_fill(causal_mask, -torch.finfo(sim.dtype).max)  # @mask
        out = torch.einsum("bhij,bjd->bhid", sim.softmax(dim=-1), v)  # @soft @mixed
        out = out.transpose(1, 2).reshape(batch, length, WIDTH)  # @joined
        up, gate = ff.chunk(2, dim=-1)  # @halves
        return self.attn_out(out) + self.ff_out(F.silu(gate) * up)  # @attended @gated @fed @summed


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token_emb, self.pos_emb = torch.nn.Embedding(VOCAB, WIDTH), torch.nn.Embedding(LENGTH, WIDTH)
        self.layers = torch.nn.ModuleList([ParallelBlock() for _ in range(LAYERS)])
        self.norm = torch.nn.LayerNorm(WIDTH, eps=EPSILON)
        self.to_logits = torch.nn.Linear(WIDTH, VOCAB, bias=False)
        self.to_logits.weight = self.token_emb.weight

    def forward(self, ids):
        x = self.token_emb(ids) * WIDTH**0.5 + self.pos_emb.weight[: ids.shape[1]]  # @embedded @grown @placed
        for layer in self.layers:
            x = layer(x) + x  # @added
        return self.to_logits(self.norm(x))  # @last_norm @logits


class ReferenceTrainer:
    def __init__(self, network) -> None:
        self.network = network
        decayed = [one for name, one in network.named_parameters() if one.ndim > 1 and "emb" not in name]
        others = [one for name, one in network.named_parameters() if one.ndim < 2 or "emb" in name]
        groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]  # @groups
        self.optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=ADAM)  # @made
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.find_factor)

    @staticmethod
    def find_factor(step):
        if step < WARM:
            return (step + 1) / (WARM + 1)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - WARM) / (TOTAL - WARM)))

    def step(self, ids, labels):
        self.optimizer.zero_grad()
        count = (labels != NONE).sum()  # @count
        total = 0.0
        for small_ids, small_labels in zip(ids.split(SMALL), labels.split(SMALL), strict=True):
            logits = self.network(small_ids)
            loss = F.cross_entropy(logits.flatten(0, 1), small_labels.flatten(), reduction="sum")  # @error
            z = (torch.logsumexp(logits, dim=-1).square() * (small_labels != NONE)).sum()  # @z @z_known
            loss = (loss + Z * z) / count  # @loss
            loss.backward()
            total = total + loss.detach()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), LIMIT)  # @norm_of_all @clip
        self.optimizer.step()  # @update @decay @rate @moments
        self.scheduler.step()
        return total


class Norm(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = ms.Parameter(ops.ones((width,)), name="gamma")

    def construct(self, x):
        return x * ops.rsqrt(x.square().mean(-1, keep_dims=True) + EPSILON) * self.gamma  # @q_norm @k_norm


class Layer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.ln, self.q_ln, self.k_ln = nn.LayerNorm((WIDTH,), epsilon=EPSILON), Norm(HEAD), Norm(HEAD)
        self.wq, self.wk = nn.Dense(WIDTH, WIDTH, has_bias=False), nn.Dense(WIDTH, HEAD, has_bias=False)
        self.wv, self.wo = nn.Dense(WIDTH, HEAD, has_bias=False), nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.w_gate, self.w_up = nn.Dense(WIDTH, INNER, has_bias=False), nn.Dense(WIDTH, INNER, has_bias=False)
        self.w_down = nn.Dense(INNER, WIDTH, has_bias=False)

    def attend(self, h):
        batch, length, _ = h.shape
        query = self.wq(h).reshape(batch, length * HEADS, HEAD)  # @query @heads
        query, key = self.q_ln(query), self.k_ln(self.wk(h))  # @key @normed
        scores = mint.bmm(query, key.swapaxes(1, 2)) / math.sqrt(HEAD)  # @scores @scaled
        scores = (scores / CAP).tanh() * CAP  # @cap
        seen = np.repeat(np.tril(np.ones((length, length))), HEADS, axis=0)  # @seen
        scores = ops.where(ms.Tensor(seen, ms.bool_), scores, ms.Tensor(-1e9, ms.float32))  # @mask
        mixed = mint.bmm(mint.softmax(scores, -1), self.wv(h))  # @soft @mixed @value
        return self.wo(mixed.reshape(batch, length, WIDTH))  # @joined @attended

    def construct(self, x):
        h = self.ln(x)  # @norm
        fed = self.w_down(ops.silu(self.w_gate(h)) * self.w_up(h))  # @halves @gated @fed
        return x + self.attend(h) + fed  # @summed @added


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.table = ms.Parameter(ops.zeros((VOCAB, WIDTH)), name="table")
        self.places = ms.Parameter(ops.zeros((LENGTH, WIDTH)), name="places")
        self.blocks, self.ln = nn.CellList([Layer() for _ in range(LAYERS)]), nn.LayerNorm((WIDTH,), epsilon=EPSILON)

    def construct(self, ids):
        x = self.table[ids] * math.sqrt(WIDTH)  # @embedded @grown
        x = x + self.places  # @placed
        for block in self.blocks:
            x = block(x)
        return mint.matmul(self.ln(x), self.table.T)  # @last_norm @logits


class CandidateTrainer:
    """The batch at once; the library's AdamW with a schedule."""

    def __init__(self, network) -> None:
        self.network, self.parameters = network, network.trainable_params()
        matrices = [one for one in self.parameters if one.ndim == 2 and one.name not in ("table", "places")]
        vectors = [one for one in self.parameters if all(one is not other for other in matrices)]
        groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]  # @groups
        self.adam = optim.AdamW(groups, lr=RATE, betas=BETAS, eps=ADAM)  # @made
        self.schedule = optim.lr_scheduler.LambdaLR(self.adam, self.warm)
        self.order = [*matrices, *vectors]

    @staticmethod
    def warm(step):
        if step < WARM:
            return (step + 1) / (WARM + 1)  # @warm
        return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - WARM) / (TOTAL - WARM)))  # @cosine

    def compute_loss(self, ids, labels):
        logits = self.network(ids)
        known = (labels != NONE).astype(ms.float32)  # @known
        top = ops.logsumexp(logits, -1)  # @error @z
        right = logits.gather_elements(-1, ops.maximum(labels, 0).expand_dims(-1)).squeeze(-1)  # @error
        each = top - right + Z * top.square()  # @error @z
        return (each * known).sum() / known.sum()  # @count @z_known @loss

    def clip(self, gradients):
        norm = ops.sqrt(sum(one.square().sum() for one in gradients))  # @norm_of_all
        factor = ops.minimum(LIMIT / (norm + 1e-6), ms.Tensor(1.0))  # @factor @norm_of_all @clip
        return tuple(one * factor for one in gradients)  # @clip

    def step(self, ids, labels):
        loss, gradients = ms.value_and_grad(self.compute_loss, None, self.parameters)(ids, labels)
        gradients = self.clip(gradients)  # @clipped
        found = {id(one): gradient for one, gradient in zip(self.parameters, gradients, strict=True)}
        self.adam(tuple(found[id(one)] for one in self.order))  # @update @decay @rate @moments
        self.schedule.step()  # @scheduled
        return loss, gradients


def convert(weights: Weights) -> Weights:
    converted = {"table": weights["token_emb.weight"], "places": weights["pos_emb.weight"]}
    converted |= {"ln.gamma": weights["norm.weight"], "ln.beta": weights["norm.bias"]}
    for number in range(LAYERS):
        old, new = f"layers.{number}", f"blocks.{number}"
        bounds = np.cumsum([WIDTH, HEAD, HEAD, INNER])
        parts = np.split(weights[f"{old}.fused.weight"], bounds)
        names = ("wq", "wk", "wv", "w_up", "w_gate")  # @load
        converted |= {f"{new}.{name}.weight": part for name, part in zip(names, parts, strict=True)}
        converted |= {f"{new}.ln.gamma": weights[f"{old}.norm.weight"], f"{new}.ln.beta": weights[f"{old}.norm.bias"]}
        converted |= {f"{new}.{one}_ln.gamma": weights[f"{old}.{one}_scale"] for one in "qk"}
        converted[f"{new}.wo.weight"] = weights[f"{old}.attn_out.weight"]
        converted[f"{new}.w_down.weight"] = weights[f"{old}.ff_out.weight"]
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(9100 + step)
    words = random.integers(VOCAB, size=(SMALL * PARTS, LENGTH + 1))
    labels = words[:, 1:].copy()
    for row, length in enumerate((9, 7, 8, 4, 5, 3)):
        labels[row, length:] = NONE
    return words[:, :-1], labels


FAULTS = (
    Fault(
        "decay of embeddings and norms too",
        "decay update",
        '"weight_decay": 0.0',
        '"weight_decay": DECAY',
        edit="groups",
        steps=2,
        first_step=1,
    ),
    Fault(
        "decay left at the library's",
        "decay update",
        '"params": matrices, "weight_decay": DECAY',
        '"params": matrices, "weight_decay": 0.01',
        edit="groups",
        steps=2,
        first_step=1,
    ),
    Fault("betas of the library", "moments update", ", betas=BETAS", "", edit="made", steps=3, first_step=2),
    Fault(
        "warm-up begins at the full rate",
        "rate update scheduled warm",
        "(step + 1) / (WARM + 1)",
        "1.0",
        edit="warm",
        steps=2,
        first_step=1,
    ),
    Fault(
        "schedule never moves",
        "rate update scheduled warm",
        "self.schedule.step()",
        "pass",
        edit="scheduled",
        steps=3,
        first_step=2,
    ),
    Fault(
        "not clipped",
        "clip clipped norm_of_all factor update",
        "self.clip(gradients)",
        "gradients",
        edit="clipped",
        is_backward=True,
    ),
    Fault(
        "each gradient clipped by itself",
        "clip norm_of_all",
        "tuple(one * factor for one in gradients)",
        "tuple(one * mint.clamp(LIMIT / one.norm(), max=1.0) for one in gradients)",
        is_backward=True,
    ),
    Fault(
        "norm without its root",
        "norm_of_all factor clip",
        "ops.sqrt(sum(one.square().sum() for one in gradients))",
        "sum(one.square().sum() for one in gradients)",
        is_backward=True,
    ),
    Fault(
        "reference averages its small batches",
        "loss count",
        "(loss + Z * z) / count",
        "(loss + Z * z) / (small_labels != NONE).sum() / PARTS",
        side="reference",
    ),
    Fault(
        "reference adds small batches up",
        "loss count",
        "(loss + Z * z) / count",
        "(loss + Z * z) / (small_labels != NONE).sum()",
        side="reference",
    ),
    Fault(
        "output does not train the table", "logits", "self.table.T", "ops.stop_gradient(self.table).T", is_backward=True
    ),
    Fault("embedding not grown", "grown embedded placed", " * math.sqrt(WIDTH)", ""),
    Fault("scores not capped", "cap mask", "(scores / CAP).tanh() * CAP", "scores"),
    Fault(
        "heads in columns of the mask",
        "mask seen",
        "np.repeat(np.tril(np.ones((length, length))), HEADS, axis=0)",
        "np.tile(np.tril(np.ones((length, length))), (HEADS, 1))",
        edit="seen",
    ),
    Fault(
        "gate and up exchanged", "halves gated", '"w_up", "w_gate"', '"w_gate", "w_up"', edit="load", parameter="fused"
    ),
    Fault(
        "feed-forward after attention",
        "summed added attended",
        "x + self.attend(h) + fed",
        "x + self.attend(h + fed) + fed",
    ),
    Fault(
        "z of padded places too",
        "z_known loss count",
        "(each * known).sum() / known.sum()",
        "((each - Z * top.square()) * known).sum() / known.sum() + Z * top.square().mean()",
    ),
    Fault(
        "keys not normed, and z not squared",
        "k_norm normed scores",
        "self.k_ln(self.wk(h))",
        "self.wk(h) * self.k_ln.gamma",
        edit="normed",
        second=("z", "Z * top.square()", "Z * top"),
    ),
)
