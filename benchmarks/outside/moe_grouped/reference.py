"""Sparse mixture of experts, the readable version: a Python loop over the experts."""
import os
import sys
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tensorprobe.pytorch import PrecisionDebugger


@dataclass
class Config:
    vocab: int = 32
    width: int = 16
    hidden: int = 24
    experts: int = 4
    top_k: int = 2
    layers: int = 2
    aux_weight: float = 0.05
    eps: float = 1e-5


class Expert(nn.Module):
    """SwiGLU"""

    def __init__(self, cfg):
        super().__init__()
        self.w1 = nn.Linear(cfg.width, cfg.hidden, bias=False)
        self.w2 = nn.Linear(cfg.hidden, cfg.width, bias=False)
        self.w3 = nn.Linear(cfg.width, cfg.hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class SparseMoE(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.gate = nn.Linear(cfg.width, cfg.experts, bias=False)
        self.experts = nn.ModuleList([Expert(cfg) for _ in range(cfg.experts)])

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        logits = self.gate(x)
        probs = F.softmax(logits, dim=-1, dtype=torch.float32)
        weights, chosen = torch.topk(probs, self.cfg.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        weights = weights.to(x.dtype)
        out = torch.zeros_like(x)
        mask = F.one_hot(chosen, self.cfg.experts).permute(2, 1, 0)
        for index, expert in enumerate(self.experts):
            slot, token = torch.where(mask[index])
            y = expert(x[token]) * weights[token, slot, None]
            out.index_add_(0, token, y)
        # Switch Transformer, eq. 4, for more than one expert per token
        share = F.one_hot(chosen, self.cfg.experts).float().mean(dim=(0, 1))
        aux = self.cfg.experts * (share * probs.mean(dim=0)).sum()
        return out.reshape(shape), aux


class CausalMix(nn.Module):
    """a token mixer that is cheap: mean over the past"""

    def __init__(self, cfg):
        super().__init__()
        self.proj = nn.Linear(cfg.width, cfg.width)

    def forward(self, x):
        count = torch.arange(1, x.shape[1] + 1).to(x.dtype)[None, :, None]
        return self.proj(x.cumsum(dim=1) / count)


class Model(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Embedding(cfg.vocab, cfg.width)
        self.norms1 = nn.ModuleList([nn.RMSNorm(cfg.width, eps=cfg.eps) for _ in range(cfg.layers)])
        self.norms2 = nn.ModuleList([nn.RMSNorm(cfg.width, eps=cfg.eps) for _ in range(cfg.layers)])
        self.mixers = nn.ModuleList([CausalMix(cfg) for _ in range(cfg.layers)])
        self.moes = nn.ModuleList([SparseMoE(cfg) for _ in range(cfg.layers)])
        self.head = nn.Linear(cfg.width, cfg.vocab, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        total_aux = 0.0
        for n1, mixer, n2, moe in zip(self.norms1, self.mixers, self.norms2, self.moes):
            x = x + mixer(n1(x))
            y, aux = moe(n2(x))
            x = x + y
            total_aux = total_aux + aux
        return self.head(x), total_aux / self.cfg.layers


def initial(model):
    rng = np.random.default_rng(21)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.from_numpy(rng.standard_normal(tuple(p.shape)).astype(np.float32))
            if "norms" in name:
                p.copy_(1 + 0.1 * x)
            else:
                p.copy_((1.5 if "gate" in name else 1.0) * x / p.shape[-1] ** 0.5)


def train(dump):
    cfg = Config()
    model = Model(cfg)
    initial(model)
    model = model.to(getattr(torch, os.environ.get("DTYPE", "bfloat16")))
    torch.save(model.state_dict(), os.path.join(os.environ["WEIGHTS"], "moe.pt"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    debugger = PrecisionDebugger(dump_path=dump, level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "1"))):
        ids = torch.from_numpy(np.random.default_rng(step).integers(0, cfg.vocab, (3, 9)))
        debugger.start(model)
        logits, aux = model(ids[:, :-1])
        ce = F.cross_entropy(logits.float().reshape(-1, cfg.vocab), ids[:, 1:].reshape(-1))
        loss = ce + cfg.aux_weight * aux
        loss.backward()
        optimizer.step()
        debugger.stop()
        grad = sum(p.grad.double().norm() ** 2 for p in model.parameters()) ** 0.5
        print(f"step {step} loss {loss.item():.8f} grad {grad:.8f} params {sum(p.detach().double().abs().sum() for p in model.parameters()):.8f}")
        optimizer.zero_grad()
        debugger.step()


if __name__ == "__main__":
    train(sys.argv[1])
