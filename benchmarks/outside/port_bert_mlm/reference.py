"""BERT pre-training step (masked LM only) with gradient accumulation and Google's optimizer (no bias correction)."""
import math
import os
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import CrossEntropyLoss

import tensorprobe

VOCAB, HIDDEN, HEADS, LAYERS, INTER, MAX_POS, TYPES = 60, 32, 4, 2, 48, 16, 2
PAD, MASK, ACCUM = 0, 4, 2


class BertEmbeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCAB, HIDDEN)
        self.position_embeddings = nn.Embedding(MAX_POS, HIDDEN)
        self.token_type_embeddings = nn.Embedding(TYPES, HIDDEN)
        self.LayerNorm = nn.LayerNorm(HIDDEN, eps=1e-12)
        self.register_buffer("position_ids", torch.arange(MAX_POS).unsqueeze(0), persistent=False)

    def forward(self, input_ids, token_type_ids):
        seq_length = input_ids.size(1)
        embeddings = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        embeddings += self.position_embeddings(self.position_ids[:, :seq_length])
        return self.LayerNorm(embeddings)


class BertSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.head_size = HIDDEN // HEADS
        self.query = nn.Linear(HIDDEN, HIDDEN)
        self.key = nn.Linear(HIDDEN, HIDDEN)
        self.value = nn.Linear(HIDDEN, HIDDEN)

    def transpose_for_scores(self, x):
        return x.view(*x.shape[:2], HEADS, self.head_size).permute(0, 2, 1, 3)

    def forward(self, hidden, is_pad):
        q = self.transpose_for_scores(self.query(hidden))
        k = self.transpose_for_scores(self.key(hidden))
        v = self.transpose_for_scores(self.value(hidden))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head_size)
        scores = scores.masked_fill(is_pad[:, None, None, :], float("-inf"))
        probs = nn.functional.softmax(scores, dim=-1)
        context = torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous()
        return context.view(*context.shape[:2], HIDDEN)


class BertLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = BertSelfAttention()
        self.attention_output = nn.Linear(HIDDEN, HIDDEN)
        self.attention_norm = nn.LayerNorm(HIDDEN, eps=1e-12)
        self.intermediate = nn.Linear(HIDDEN, INTER)
        self.output = nn.Linear(INTER, HIDDEN)
        self.output_norm = nn.LayerNorm(HIDDEN, eps=1e-12)

    def forward(self, hidden, is_pad):
        attended = self.attention_output(self.attention(hidden, is_pad))
        hidden = self.attention_norm(attended + hidden)
        inner = nn.functional.gelu(self.intermediate(hidden))
        return self.output_norm(self.output(inner) + hidden)


class BertForMaskedLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = BertEmbeddings()
        self.layer = nn.ModuleList([BertLayer() for _ in range(LAYERS)])
        self.transform = nn.Linear(HIDDEN, HIDDEN)
        self.transform_norm = nn.LayerNorm(HIDDEN, eps=1e-12)
        self.decoder = nn.Linear(HIDDEN, VOCAB)
        self.apply(self._init_weights)
        self.decoder.weight = self.embeddings.word_embeddings.weight

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=0.02 if isinstance(module, nn.Embedding) else 0.15)
        if isinstance(module, nn.Linear):
            module.bias.data.normal_(std=0.02)

    def forward(self, input_ids, token_type_ids, attention_mask, labels):
        is_pad = attention_mask == 0
        hidden = self.embeddings(input_ids, token_type_ids)
        for layer in self.layer:
            hidden = layer(hidden, is_pad)
        hidden = self.transform_norm(nn.functional.gelu(self.transform(hidden)))
        logits = self.decoder(hidden)
        return CrossEntropyLoss()(logits.view(-1, VOCAB), labels.view(-1))


class BertAdam(torch.optim.Optimizer):
    """Adam as in google-research/bert: decay is decoupled, moments are not corrected."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                m, v = state["m"], state["v"]
                m.mul_(beta1).add_(p.grad, alpha=1 - beta1)
                v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                update = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * p
                p.add_(update, alpha=-group["lr"])


def mask_tokens(ids, rng):
    """15 % of the tokens in BERT; 30 % here, so that every sequence has some."""
    labels = ids.copy()
    chosen = (rng.rand(*ids.shape) < 0.3) & (ids > MASK)
    chosen[:, 1] = True
    labels[~chosen] = -100
    ids = ids.copy()
    ids[chosen & (rng.rand(*ids.shape) < 0.8)] = MASK
    return ids, labels


def make_micro_batch(index):
    rng = np.random.RandomState(300 + index)
    lengths = rng.randint(6, 13, 3)
    lengths[0] = 12
    valid = np.arange(12)[None] < lengths[:, None]
    ids = rng.randint(5, VOCAB, (3, 12)) * valid
    types = (np.arange(12)[None] >= lengths[:, None] // 2) & valid
    ids, labels = mask_tokens(ids, rng)
    return ids, types.astype(np.int64), valid.astype(np.int64), labels


def norm(tensors):
    return math.sqrt(sum(float(t.detach().double().pow(2).sum()) for t in tensors))


torch.manual_seed(2018)
model = BertForMaskedLM().train()
np.savez(os.path.join(os.environ["WEIGHTS"], "bert.npz"), **{k: v.numpy() for k, v in model.state_dict().items()})
plain = [p for n, p in model.named_parameters() if "norm" in n.lower() or n.endswith("bias")]
decayed = [p for n, p in model.named_parameters() if not ("norm" in n.lower() or n.endswith("bias"))]
optimizer = BertAdam([{"params": decayed}, {"params": plain, "weight_decay": 0.0}], lr=2e-3)

with tensorprobe.capture(model, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
    for step in range(int(os.environ.get("STEPS", 2))):
        total_loss = 0.0
        for i in range(ACCUM):
            batch = [torch.as_tensor(a) for a in make_micro_batch(step * ACCUM + i)]
            loss = model(*batch) / ACCUM
            loss.backward()
            total_loss += loss.item()
        optimizer.step()
        grads = [p.grad for p in model.parameters()]
        table = model.embeddings.word_embeddings.weight
        print(f"step {step} loss {total_loss:.8f} gnorm {norm(grads):.8f} gtable {norm([table.grad]):.8f} wnorm {norm(model.parameters()):.8f} table {norm([table]):.8f}")
        optimizer.zero_grad()
        run.step()
