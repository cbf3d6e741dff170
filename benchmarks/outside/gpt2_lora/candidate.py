"""
GPT-2 classifier with LoRA merged into the weights on the fly: W' = W + scale * (B A)^T,
so there is only one matmul per projection. No checkpointing, no transformers.
"""
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from tensorprobe.pytorch import PrecisionDebugger

D, HEADS, LAYERS, LABELS, VOCAB, POSITIONS = 24, 3, 2, 3, 40, 16
PAD = VOCAB - 1


class MergeLora(nn.Module):
    """parametrization of the (3 * D, D) weight of qkv"""

    def __init__(self, dim, rank=4, alpha=8):
        super().__init__()
        self.scale = alpha / rank
        self.a_q = nn.Parameter(torch.zeros(rank, dim))
        self.b_q = nn.Parameter(torch.zeros(dim, rank))
        self.a_v = nn.Parameter(torch.zeros(rank, dim))
        self.b_v = nn.Parameter(torch.zeros(dim, rank))

    def forward(self, weight):
        dq = self.b_q @ self.a_q
        dv = self.b_v @ self.a_v
        delta = torch.cat([dq, torch.zeros_like(dq), dv], dim=0)
        return weight + self.scale * delta


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1 = nn.LayerNorm(D, eps=1e-5)
        self.qkv = nn.Linear(D, 3 * D)
        self.proj = nn.Linear(D, D)
        self.ln2 = nn.LayerNorm(D, eps=1e-5)
        self.fc = nn.Linear(D, 4 * D)
        self.out = nn.Linear(4 * D, D)

    def forward(self, x, bias):
        n, t, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = torch.einsum("nhqd,nhkd->nhqk", q, k) / q.shape[-1] ** 0.5
        attended = torch.einsum("nhqk,nhkd->nqhd", (scores + bias).softmax(-1), v)
        x = x + self.proj(attended.flatten(2))
        hidden = F.gelu(self.fc(self.ln2(x)), approximate="tanh")
        return x + self.out(hidden)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, D)
        self.wpe = nn.Embedding(POSITIONS, D)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.ln_f = nn.LayerNorm(D, eps=1e-5)
        self.score = nn.Linear(D, LABELS, bias=False)

    def forward(self, ids, lengths):
        t = ids.shape[1]
        pos = torch.arange(t)
        allowed = (pos[None, :] <= pos[:, None])[None] & (pos[None, None, :] < lengths[:, None, None])
        bias = torch.zeros(allowed.shape, dtype=self.wte.weight.dtype).masked_fill(~allowed, float("-inf"))[:, None]
        x = self.wte(ids) + self.wpe(pos)
        for layer in self.layers:
            x = layer(x, bias)
        last = x[torch.arange(len(ids)), lengths - 1]
        return self.score(self.ln_f(last))  # norm and head only where they are needed


def load_from_adapters(model, sd):
    """Conv1D stores (in, out), Linear (out, in)"""
    t = "transformer."
    model.wte.weight.data.copy_(sd[t + "wte.weight"])
    model.wpe.weight.data.copy_(sd[t + "wpe.weight"])
    for i, layer in enumerate(model.layers):
        h = f"{t}h.{i}."
        for ours, theirs in (("ln1", "ln_1"), ("ln2", "ln_2")):
            getattr(layer, ours).load_state_dict({k: sd[f"{h}{theirs}.{k}"] for k in ("weight", "bias")})
        for ours, theirs in (("qkv", "attn.c_attn.base_layer"), ("proj", "attn.c_proj"), ("fc", "mlp.c_fc"), ("out", "mlp.c_proj")):
            getattr(layer, ours).weight.data.copy_(sd[f"{h}{theirs}.weight"].t())
            getattr(layer, ours).bias.data.copy_(sd[f"{h}{theirs}.bias"])
        lora = MergeLora(D)
        for part in "qv":
            getattr(lora, "a_" + part).data.copy_(sd[f"{h}attn.c_attn.lora_A.{part}.weight"])
            getattr(lora, "b_" + part).data.copy_(sd[f"{h}attn.c_attn.lora_B.{part}.weight"])
        parametrize.register_parametrization(layer.qkv, "weight", lora)
    model.ln_f.load_state_dict({k: sd[f"{t}ln_f.{k}"] for k in ("weight", "bias")})
    model.score.weight.data.copy_(sd["score.weight"])


def groups(model, lr=1e-3, ratio=16):
    for n, p in model.named_parameters():
        p.requires_grad_(".a_" in n or ".b_" in n or n.startswith("score"))
    live = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    yield {"params": [p for n, p in live if ".b_" not in n], "lr": lr}
    yield {"params": [p for n, p in live if ".b_" in n], "lr": lr * ratio}


def get_batch(step, n=4, longest=11):
    rng = np.random.default_rng(500 + step)
    ids, lengths = np.full((n, longest), PAD), []
    for row in ids:
        lengths.append(int(rng.integers(4, longest + 1)))
        row[: lengths[-1]] = rng.integers(0, PAD, lengths[-1])
    labels = rng.integers(0, LABELS, n)
    return torch.from_numpy(ids), torch.tensor(lengths), torch.from_numpy(labels)


def run():
    model = Classifier()
    load_from_adapters(model, torch.load(os.path.join(os.environ["WEIGHTS"], "gpt2_lora.pt")))
    model.to(getattr(torch, os.environ.get("DTYPE", "float32")))
    optim = torch.optim.AdamW(list(groups(model)), weight_decay=0.01)
    probe = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "2"))):
        ids, lengths, labels = get_batch(step)
        probe.start(model)
        loss = F.cross_entropy(model(ids, lengths), labels)
        loss.backward()
        optim.step()
        probe.stop()
        live = [p for p in model.parameters() if p.requires_grad]
        norm = torch.cat([p.grad.double().flatten() for p in live]).norm()
        print(f"step {step} loss {loss.item():.8f} grad {norm:.8f} params {torch.cat([p.detach().double().flatten() for p in live]).norm():.8f}")
        optim.zero_grad()
        probe.step()


if __name__ == "__main__":
    run()
