"""The same tagger without torch.optim and without parametrizations, as a step towards running it elsewhere."""
import math
import os
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tensorprobe.pytorch import PrecisionDebugger


class WNConv(nn.Module):
    """w = g * v / |v|, the norm over everything but the output channel"""

    def __init__(self, cin, cout, k, dilation=1):
        super().__init__()
        self.g = nn.Parameter(torch.ones(cout, 1, 1))
        self.v = nn.Parameter(torch.zeros(cout, cin, k))
        self.b = nn.Parameter(torch.zeros(cout))
        self.k, self.dilation = k, dilation

    def forward(self, x):
        length = self.v.pow(2).sum((1, 2), keepdim=True).sqrt()
        w = self.g * self.v / length
        left = (self.k - 1) * self.dilation
        x = F.pad(x, (left, 0)) if left else x
        return F.conv1d(x, w, self.b, dilation=self.dilation)


class Net(nn.Module):
    def __init__(self, vocab=20, dim=12, tags=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.a1, self.m1 = WNConv(dim, dim, 3, 1), WNConv(dim, dim, 1)
        self.a2, self.m2 = WNConv(dim, dim, 3, 2), WNConv(dim, dim, 1)
        self.head = nn.Linear(dim, tags)

    def forward(self, ids):
        x = self.embed(ids).mT
        for conv, mix in ((self.a1, self.m1), (self.a2, self.m2)):
            x = x + mix(F.leaky_relu(conv(x), negative_slope=0.1))
        return self.head(x.mT)


class AdamW:
    """Loshchilov & Hutter, decoupled weight decay"""

    def __init__(self, params, lr, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.05):
        self.params = list(params)
        self.lr, self.betas, self.eps, self.wd = lr, betas, eps, weight_decay
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]
        self.t = 0

    @torch.no_grad()
    def step(self, factor):
        self.t += 1
        lr = self.lr * factor
        b1, b2 = self.betas
        c1, c2 = 1 - b1**self.t, 1 - b2**self.t
        for p, m, v in zip(self.params, self.m, self.v):
            g = p.grad
            m.mul_(b1).add_(g, alpha=1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            p.mul_(1 - lr * self.wd)
            denom = (v / c2).sqrt().add_(self.eps)
            p.addcdiv_(m, denom, value=-lr / c1)

    def zero_grad(self):
        for p in self.params:
            p.grad = None


@torch.no_grad()
def clip_(params, max_norm):
    grads = [p.grad for p in params]
    norm = torch.stack([g.pow(2).sum() for g in grads]).sum().sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for g in grads:
        g.mul_(factor)
    return norm


@torch.no_grad()
def ema_update(shadow, model, decay=0.8):
    for name, p in model.named_parameters():
        shadow[name].mul_(decay).add_(p, alpha=1 - decay)


def schedule(step, warmup=4, total=10):
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def load(net, old):
    new = {k: old[k] for k in ("embed.weight", "head.weight", "head.bias")}
    for ours, theirs in {"a1": "0.conv", "m1": "0.mix", "a2": "1.conv", "m2": "1.mix"}.items():
        new[ours + ".b"] = old[f"layers.{theirs}.bias"]
        new[ours + ".g"] = old[f"layers.{theirs}.parametrizations.weight.original0"]
        new[ours + ".v"] = old[f"layers.{theirs}.parametrizations.weight.original1"]
    net.load_state_dict(new)


def data(step):
    rng = np.random.default_rng([step, 9])
    out = []
    for length in (9, 5, 7):
        ids, tags = rng.integers(0, 20, (3, length)), rng.integers(0, 6, (3, length))
        tags = np.where(rng.random((3, length)) < 0.2, -1, tags)
        out.append((torch.from_numpy(ids), torch.from_numpy(tags)))
    return out


def nll(logits, tags):
    keep = tags >= 0
    return F.cross_entropy(logits[keep], tags[keep], reduction="sum"), keep.sum()


if __name__ == "__main__":
    net = Net()
    load(net, torch.load(os.path.join(os.environ["WEIGHTS"], "tagger.pt")))
    net.to(getattr(torch, os.environ.get("DTYPE", "float32")))
    shadow = {n: p.detach().clone() for n, p in net.named_parameters()}
    opt = AdamW(net.parameters(), lr=4e-3)
    held_ids, held_tags = data(10**6)[0]
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "2"))):
        micro = data(step)
        count = sum((tags >= 0).sum().item() for _, tags in micro)
        debugger.start(net)
        opt.zero_grad()
        losses = []
        for ids, tags in micro:
            part, n = nll(net(ids), tags)
            loss = part / count
            loss.backward()
            losses.append(loss.detach())
        norm = clip_(opt.params, 0.7)
        opt.step(schedule(step))
        ema_update(shadow, net)
        with torch.no_grad():
            part, n = nll(torch.func.functional_call(net, shadow, held_ids), held_tags)
            held = part / n
        debugger.stop()
        print(f"step {step} loss {sum(losses).item():.8f} norm {norm.item():.8f} held {held.item():.8f} "
              f"params {sum(p.detach().double().abs().sum() for p in net.parameters()):.8f}")
        debugger.step()
