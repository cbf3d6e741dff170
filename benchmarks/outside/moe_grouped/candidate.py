"""Grouped mixture of experts: tokens sorted by expert, one grouped matmul for each projection."""
import os
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tensorprobe.pytorch import PrecisionDebugger


def route(logits, k):
    p = logits.float().softmax(-1)
    top, idx = p.topk(k, -1)
    top = top / top.sum(-1, keepdim=True)
    return p, top.type_as(logits), idx


class GroupedExperts(nn.Module):
    def __init__(self, n, d, h):
        super().__init__()
        self.n = n
        self.gate_up = nn.Parameter(torch.empty(n, d, 2 * h))
        self.down = nn.Parameter(torch.empty(n, h, d))

    def forward(self, x, w, idx):
        T, k = idx.shape
        flat = idx.reshape(-1)
        order = flat.argsort(stable=True)
        source = order // k
        offs = torch.bincount(flat, minlength=self.n).cumsum(0).to(torch.int32)
        h = F.grouped_mm(x[source], self.gate_up, offs=offs)
        g, u = h.chunk(2, -1)
        y = F.grouped_mm(F.silu(g) * u, self.down, offs=offs)
        y = y * w.reshape(-1)[order, None]
        return torch.zeros_like(x).index_add(0, source, y)


class MoEBlock(nn.Module):
    def __init__(self, d, h, n, k, eps):
        super().__init__()
        self.k, self.n = k, n
        self.n1 = nn.RMSNorm(d, eps=eps)
        self.mix = nn.Linear(d, d)
        self.n2 = nn.RMSNorm(d, eps=eps)
        self.router = nn.Parameter(torch.empty(n, d))
        self.experts = GroupedExperts(n, d, h)

    def balance(self, p, idx):
        counts = torch.bincount(idx.flatten(), minlength=self.n)
        f = counts / idx.numel()
        return self.n * torch.dot(f, p.mean(0))

    def forward(self, x):
        b, t, d = x.shape
        past = torch.arange(1, t + 1, dtype=x.dtype)[:, None]
        x = x + self.mix(self.n1(x).cumsum(1) / past)
        u = self.n2(x).view(-1, d)
        p, w, idx = route(u @ self.router.t(), self.k)
        return x + self.experts(u, w, idx).view(b, t, d), self.balance(p, idx)


class LM(nn.Module):
    def __init__(self, vocab=32, d=16, h=24, n=4, k=2, layers=2, eps=1e-5):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList([MoEBlock(d, h, n, k, eps) for _ in range(layers)])
        self.unembed = nn.Linear(d, vocab, bias=False)

    def forward(self, ids, targets, aux_coef=0.05):
        x, balance = self.embed(ids), []
        for block in self.blocks:
            x, b = block(x)
            balance.append(b)
        ce = F.cross_entropy(self.unembed(x).float().flatten(0, 1), targets.flatten())
        return ce + aux_coef * torch.stack(balance).mean()


def import_checkpoint(net, sd):
    with torch.no_grad():
        net.embed.weight.copy_(sd["embed.weight"])
        net.unembed.weight.copy_(sd["head.weight"])
        for i, b in enumerate(net.blocks):
            b.n1.weight.copy_(sd[f"norms1.{i}.weight"])
            b.n2.weight.copy_(sd[f"norms2.{i}.weight"])
            b.mix.weight.copy_(sd[f"mixers.{i}.proj.weight"])
            b.mix.bias.copy_(sd[f"mixers.{i}.proj.bias"])
            b.router.copy_(sd[f"moes.{i}.gate.weight"])
            for e in range(b.n):
                pre = f"moes.{i}.experts.{e}."
                b.experts.gate_up[e].copy_(torch.cat([sd[pre + "w1.weight"], sd[pre + "w3.weight"]]).t())
                b.experts.down[e].copy_(sd[pre + "w2.weight"].t())


if __name__ == "__main__":
    net = LM().to(getattr(torch, os.environ.get("DTYPE", "bfloat16")))
    import_checkpoint(net, torch.load(os.path.join(os.environ["WEIGHTS"], "moe.pt")))
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    probe = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "1"))):
        ids = torch.from_numpy(np.random.default_rng(step).integers(0, 32, (3, 9)))
        probe.start(net)
        loss = net(ids[:, :-1], ids[:, 1:])
        loss.backward()
        sgd.step()
        probe.stop()
        grad = sum(p.grad.double().norm() ** 2 for p in net.parameters()) ** 0.5
        print(f"step {step} loss {loss.item():.8f} grad {grad:.8f} params {sum(p.detach().double().abs().sum() for p in net.parameters()):.8f}")
        sgd.zero_grad()
        probe.step()
