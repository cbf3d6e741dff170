"""The next things of a session, told from sampled others: conv layers in blocks, or products and all scores at once."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

ITEMS, WIDTH, HEADS, SIZE, BLOCKS, TIME, BATCH, OTHERS = 17, 8, 2, 4, 2, 7, 5, 3
EPSILON, PENALTY = 1e-8, 0.02
RATE, WARM, TOTAL, BETAS, ADAM, DECAY, LIMIT = 0.02, 2, 10, (0.9, 0.98), 1e-6, 0.1, 0.15
LOG_Q = np.log((1 + np.arange(ITEMS + 1) % 5) / 50).astype(np.float32)


class PointWiseFeedForward(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv1d(WIDTH, WIDTH, kernel_size=1)
        self.conv2 = torch.nn.Conv1d(WIDTH, WIDTH, kernel_size=1)

    def forward(self, inputs):
        outputs = self.conv2(F.relu(self.conv1(inputs.transpose(-1, -2)))).transpose(-1, -2)  # @wide @relu @forward
        return outputs + inputs  # @added2


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.item_emb = torch.nn.Embedding(ITEMS + 1, WIDTH, padding_idx=0)
        self.pos_emb = torch.nn.Embedding(TIME, WIDTH)
        self.item_bias = torch.nn.Parameter(torch.zeros(ITEMS + 1))
        self.attention_layernorms = torch.nn.ModuleList()
        self.attention_layers = torch.nn.ModuleList()
        self.forward_layernorms = torch.nn.ModuleList()
        self.forward_layers = torch.nn.ModuleList()
        for _ in range(BLOCKS):
            self.attention_layernorms.append(torch.nn.LayerNorm(WIDTH, eps=EPSILON))
            self.attention_layers.append(torch.nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True))
            self.forward_layernorms.append(torch.nn.LayerNorm(WIDTH, eps=EPSILON))
            self.forward_layers.append(PointWiseFeedForward())
        self.last_layernorm = torch.nn.LayerNorm(WIDTH, eps=EPSILON)
        self.register_buffer("log_q", torch.from_numpy(LOG_Q), persistent=False)

    def log2feats(self, log_seqs):
        valid = log_seqs != 0  # @valid
        seqs = self.item_emb(log_seqs) * WIDTH**0.5  # @embedded @grown
        positions = valid.flip(1).cumsum(1).flip(1) - 1
        seqs = seqs + self.pos_emb(positions.clamp(min=0))  # @placed
        seqs = seqs * valid.unsqueeze(-1)  # @blanked
        hidden = ~torch.tril(torch.ones(TIME, TIME, dtype=torch.bool)) | ~valid[:, None, :]  # @causal @padded
        hidden = hidden & ~torch.eye(TIME, dtype=torch.bool)  # @padded
        hidden = hidden.repeat_interleave(HEADS, dim=0)
        for i in range(BLOCKS):
            query = self.attention_layernorms[i](seqs)  # @normed
            attention = self.attention_layers[i]
            mixed, _ = attention(query, seqs, seqs, attn_mask=hidden)  # @query @keys @scores @masked @soft @mixed
            seqs = query + mixed  # @added
            seqs = self.forward_layers[i](self.forward_layernorms[i](seqs))  # @normed2
            seqs = seqs * valid.unsqueeze(-1)  # @blanked2
        return self.last_layernorm(seqs)  # @last

    def score(self, feats, items):
        logits = (feats * self.item_emb(items)).sum(dim=-1)  # @scored
        return logits + self.item_bias[items] - self.log_q[items]  # @biased @corrected

    def forward(self, log_seqs, pos_seqs, neg_seqs):
        feats = self.log2feats(log_seqs)
        return self.score(feats, pos_seqs), self.score(feats.unsqueeze(2), neg_seqs)


class BertAdam(torch.optim.Optimizer):
    """Does not correct its moments."""

    def __init__(self, params) -> None:
        super().__init__(params, {"lr": RATE, "weight_decay": DECAY})

    def get_lr(self, step):
        if step < WARM:
            return (step + 1) / (WARM + 1)
        return max((TOTAL - step) / (TOTAL - WARM), 0.0)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, next_m=torch.zeros_like(p), next_v=torch.zeros_like(p))
                state["next_m"].mul_(BETAS[0]).add_(p.grad, alpha=1 - BETAS[0])  # @moments
                state["next_v"].mul_(BETAS[1]).addcmul_(p.grad, p.grad, value=1 - BETAS[1])  # @moments
                update = state["next_m"] / (state["next_v"].sqrt() + ADAM)  # @direction
                if group["weight_decay"] > 0.0:
                    update = update + group["weight_decay"] * p  # @decay
                p.add_(-group["lr"] * self.get_lr(state["step"]) * update)  # @rate @update
                state["step"] += 1


class ReferenceTrainer:
    def __init__(self, network) -> None:
        self.network = network
        no_decay = ("bias", "layernorm", "emb")
        named = list(network.named_parameters())
        groups = [
            {"params": [p for name, p in named if not any(word in name for word in no_decay)]},
            {"params": [p for name, p in named if any(word in name for word in no_decay)], "weight_decay": 0.0},
        ]
        self.optimizer = BertAdam(groups)

    def step(self, log_seqs, pos_seqs, neg_seqs):
        pos_logits, neg_logits = self.network(log_seqs, pos_seqs, neg_seqs)
        indices = torch.where(pos_seqs != 0)
        loss = -F.logsigmoid(pos_logits.unsqueeze(-1) - neg_logits).mean(dim=-1)  # @apart @each @others
        loss = loss[indices].mean()  # @known @averaged
        for seqs in (log_seqs, pos_seqs, neg_seqs):
            squares = self.network.item_emb(seqs)[indices].square().sum()  # @squares
            loss = loss + PENALTY * squares / len(indices[0])  # @penalty @loss
        self.optimizer.zero_grad()  # @zeroed
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), LIMIT)  # @clip @zeroed
        self.optimizer.step()
        return loss


class Attend(nn.Cell):
    """Asks with what is normed, of what is not."""

    def __init__(self) -> None:
        super().__init__()
        self.ask = nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.answer = nn.Dense(WIDTH, 2 * WIDTH, has_bias=False)
        self.out = nn.Dense(WIDTH, WIDTH, has_bias=False)

    def construct(self, normed: Tensor, x: Tensor, shade: Tensor) -> Tensor:
        query = self.ask(normed).reshape(BATCH, TIME, HEADS, SIZE).transpose(0, 2, 1, 3)  # @query
        both = self.answer(x).reshape(BATCH, TIME, 2, HEADS, SIZE).transpose(2, 0, 3, 1, 4)  # @keys
        scores = ops.matmul(query, both[0].swapaxes(-1, -2)) / SIZE**0.5  # @scores
        chances = ops.softmax(scores + shade, -1)  # @masked @soft
        mixed = ops.matmul(chances, both[1]).transpose(0, 2, 1, 3)  # @mixed
        return self.out(mixed.reshape(BATCH, TIME, WIDTH))  # @mixed


class Layer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm((WIDTH,), epsilon=EPSILON), nn.LayerNorm((WIDTH,), epsilon=EPSILON)
        self.attend = Attend()
        self.wide, self.back = nn.Dense(WIDTH, WIDTH, activation="relu"), nn.Dense(WIDTH, WIDTH)

    def construct(self, x: Tensor, shade: Tensor) -> Tensor:
        normed = self.norm1(x)  # @normed
        x = normed + self.attend(normed, x, shade)  # @added
        x = self.norm2(x)  # @normed2
        return x + self.back(self.wide(x))  # @wide @relu @forward @added2


class Candidate(nn.Cell):
    """All things are scored at all places."""

    def __init__(self) -> None:
        super().__init__()
        self.items = Parameter(ops.zeros((ITEMS + 1, WIDTH)), name="items")
        self.places = Parameter(ops.zeros((TIME, WIDTH)), name="places")
        self.popular = Parameter(ops.zeros((ITEMS + 1,)), name="popular")
        self.layers = nn.CellList([Layer() for _ in range(BLOCKS)])
        self.last = nn.LayerNorm((WIDTH,), epsilon=EPSILON)
        self.order = Tensor(np.arange(TIME)[::-1].copy(), ms.int32)  # @order_made
        self.future = Tensor(np.triu(np.ones((TIME, TIME)), 1), ms.float32)  # @future_made
        self.others = Tensor(1 - np.eye(TIME), ms.float32)
        self.log_q = Tensor(LOG_Q)

    def construct(self, seen: Tensor) -> Tensor:
        known = (seen > 0).astype(ms.float32)  # @valid
        x = ops.gather(self.items, seen, 0) * WIDTH**0.5  # @embedded @grown
        x = x + ops.gather(self.places, self.order, 0)  # @placed
        x = x * known.expand_dims(2)  # @blanked
        empty = (1 - known).expand_dims(1) * self.others  # @padded
        shade = ops.maximum(self.future, empty).expand_dims(1) * -1e9  # @causal @padded @shaded
        for layer in self.layers:
            x = layer(x, shade)  # @layer
            x = x * known.expand_dims(2)  # @blanked2
        x = self.last(x)  # @last
        scores = ops.matmul(x, self.items.T)  # @scored
        return scores + (self.popular - self.log_q)  # @biased @corrected

    def weigh(self, items: Tensor) -> Tensor:
        """The square of each vector."""
        squares = ops.square(self.items).sum(1)  # @squares
        return ops.gather(squares, items, 0)  # @squares


class CandidateTrainer:
    def __init__(self, network) -> None:
        self.network = network
        self.parameters = network.trainable_params()
        heavy = [one for one in self.parameters if one.name.endswith("weight")]  # @groups
        light = [one for one in self.parameters if not one.name.endswith("weight")]  # @groups
        groups = [{"params": heavy, "weight_decay": DECAY}, {"params": light, "weight_decay": 0.0}]  # @groups_made
        rates = [RATE * (step + 1) / (WARM + 1) for step in range(WARM)]  # @rates
        rates += [RATE * (TOTAL - step) / (TOTAL - WARM) for step in range(WARM, TOTAL + 1)]
        self.optimizer = nn.AdamWeightDecay(groups, rates, beta1=BETAS[0], beta2=BETAS[1], eps=ADAM)  # @made

    def compute_loss(self, seen, wanted, others):
        scores = self.network(seen)
        wanted_score = ops.gather_elements(scores, 2, wanted.expand_dims(2))  # @scored
        other_scores = ops.gather_elements(scores, 2, others)  # @scored
        each = ops.softplus(other_scores - wanted_score)  # @apart @each
        each = each.mean(2)  # @others
        known = (wanted > 0).astype(ms.float32)
        count = known.sum()
        loss = (each * known).sum() / count  # @known @averaged
        squares = self.network.weigh(seen) + self.network.weigh(wanted) + self.network.weigh(others).sum(2)  # @squares
        return loss + PENALTY * (squares * known).sum() / count  # @squares @penalty @loss

    def step(self, seen, wanted, others):
        compute = ms.value_and_grad(self.compute_loss, None, self.optimizer.parameters)
        loss, gradients = compute(seen, wanted, others)
        gradients = ops.clip_by_global_norm(gradients, LIMIT)  # @clip
        self.optimizer(gradients)  # @moments @direction @decay @rate @update
        found = {one.name: gradient for one, gradient in zip(self.optimizer.parameters, gradients, strict=True)}
        return loss, [found[one.name] for one in self.parameters]


def convert(weights: Weights) -> Weights:
    converted = {"items": weights["item_emb.weight"], "places": weights["pos_emb.weight"]}
    converted["popular"] = weights["item_bias"]
    norms = {"last": "last_layernorm"}
    for number in range(BLOCKS):
        new = f"layers.{number}"
        norms |= {f"{new}.norm1": f"attention_layernorms.{number}", f"{new}.norm2": f"forward_layernorms.{number}"}
        query, key, value = np.split(weights[f"attention_layers.{number}.in_proj_weight"], 3)
        converted[f"{new}.attend.ask.weight"] = query
        converted[f"{new}.attend.answer.weight"] = np.concatenate([key, value])  # @load
        converted[f"{new}.attend.out.weight"] = weights[f"attention_layers.{number}.out_proj.weight"]
        for word, conv in (("wide", "conv1"), ("back", "conv2")):
            converted[f"{new}.{word}.weight"] = weights[f"forward_layers.{number}.{conv}.weight"].squeeze(2)
            converted[f"{new}.{word}.bias"] = weights[f"forward_layers.{number}.{conv}.bias"]
    for new, old in norms.items():
        converted |= {f"{new}.gamma": weights[f"{old}.weight"], f"{new}.beta": weights[f"{old}.bias"]}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(8700 + step)
    session = random.integers(1, ITEMS + 1, size=(BATCH, TIME + 1))
    lengths = np.array([7, 3, 5, 2, 6])[:, None]
    known = np.arange(TIME) >= TIME - lengths
    others = random.integers(1, ITEMS + 1, size=(BATCH, TIME, OTHERS))
    seen, wanted = np.where(known, session[:, :-1], 0), np.where(known, session[:, 1:], 0)
    return seen, wanted, np.where(known[..., None], others, 0)


FAULTS = (
    Fault("places from the left", "placed", "np.arange(TIME)[::-1]", "np.arange(TIME)", edit="order_made"),
    Fault("one thing ahead is seen", "causal masked", "(TIME, TIME)), 1)", "(TIME, TIME)), 2)", edit="future_made"),
    Fault("padded places not blanked", "blanked2", "x * known.expand_dims(2)", "x * 1", has_effect=False),
    Fault("sum with what is not normed", "added", "x = normed + self", "x = x + self"),
    Fault(
        "keys and values exchanged",
        "keys",
        "[key, value]",
        "[value, key]",
        edit="load",
        parameter="in_proj",
    ),
    Fault("first layer twice", "normed keys layer", "layer(x, shade)", "self.layers[0](x, shade)", edit="layer"),
    Fault(
        "others better than what is wanted", "apart each", "other_scores - wanted_score", "wanted_score - other_scores"
    ),
    Fault(
        "correction the other way round", "corrected biased", "self.popular - self.log_q", "self.popular + self.log_q"
    ),
    Fault("padded places in the mean", "averaged", "(each * known).sum() / count", "(each * known).mean()"),
    Fault(
        "scores do not train the vectors",
        "scored",
        "ops.matmul(x, self.items.T)",
        "ops.matmul(x, ops.stop_gradient(self.items).T)",
        is_backward=True,
    ),
    Fault(
        "each clipped by its own norm",
        "clip",
        "ops.clip_by_global_norm(gradients, LIMIT)",
        "tuple(ops.clip_by_norm(one, LIMIT) for one in gradients)",
        is_backward=True,
    ),
    Fault(
        "vectors decay, too",
        "decay update",
        '"weight_decay": 0.0',
        '"weight_decay": DECAY',
        edit="groups_made",
        steps=2,
        first_step=1,
    ),
    Fault(
        "warm-up begins with nothing",
        "rate update",
        "RATE * (step + 1)",
        "RATE * step",
        edit="rates",
        steps=2,
        first_step=1,
    ),
    Fault(
        "reference keeps the gradients of the step before",
        "zeroed clip",
        "self.optimizer.zero_grad()",
        "None",
        side="reference",
        steps=2,
        first_step=1,
    ),
    Fault("reference sums over the others", "others", ".mean(dim=-1)", ".sum(dim=-1)", side="reference"),
    Fault(
        "no relu, and the penalty doubled",
        "relu wide",
        "x + self.back(self.wide(x))",
        "x + self.back(ops.matmul(x, self.wide.weight.T) + self.wide.bias)",
        second=("penalty", "PENALTY * (squares", "2 * PENALTY * (squares"),
    ),
)
