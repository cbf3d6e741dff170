"""Multi-task recommender: DIN attention over the click history, multi-gate mixture of experts, ESMM losses."""
import os
import sys
import zlib

import numpy as np
import torch
from torch import nn

import tensorprobe

FIELDS = {"user": 23, "age": 7, "city": 11}
ITEMS, DIM, HIST, BATCH = 31, 6, 5, 6
EXPERTS, EXPERT_DIM, TASKS = 3, 10, 2


class Dice(nn.Module):
    """Data adaptive activation of DIN."""

    def __init__(self, dim, eps=1e-8):
        super().__init__()
        self.bn = nn.BatchNorm1d(dim, eps=eps, affine=False)
        self.alpha = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        p = torch.sigmoid(self.bn(x))
        return self.alpha * (1 - p) * x + p * x


class DINAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4 * dim, 12), nn.PReLU(), nn.Linear(12, 1))

    def forward(self, target, history, mask):
        query = target.unsqueeze(1).expand_as(history)
        x = torch.cat([query, history, query - history, query * history], dim=-1)
        score = self.net(x).squeeze(-1)
        score = score.masked_fill(~mask, 0.0)  # no softmax: the intensity of interest is kept
        return torch.bmm(score.unsqueeze(1), history).squeeze(1)


class Expert(nn.Module):
    def __init__(self, din, dout):
        super().__init__()
        self.fc1 = nn.Linear(din, 16)
        self.fc2 = nn.Linear(16, dout)

    def forward(self, x):
        return torch.relu(self.fc2(torch.relu(self.fc1(x))))


class Tower(nn.Module):
    def __init__(self, din):
        super().__init__()
        self.fc1 = nn.Linear(din, 8)
        self.act = Dice(8)
        self.fc2 = nn.Linear(8, 1)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x))).squeeze(-1)


class MMoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.ModuleDict({name: nn.Embedding(size, DIM) for name, size in FIELDS.items()})
        self.item = nn.Embedding(ITEMS, DIM)
        self.attention = DINAttention(DIM)
        din = DIM * (len(FIELDS) + 2) + 2
        self.experts = nn.ModuleList(Expert(din, EXPERT_DIM) for _ in range(EXPERTS))
        self.gates = nn.ModuleList(nn.Linear(din, EXPERTS, bias=False) for _ in range(TASKS))
        self.towers = nn.ModuleList(Tower(EXPERT_DIM) for _ in range(TASKS))

    def forward(self, sparse, dense, item, history):
        fields = [self.embeddings[name](sparse[:, i]) for i, name in enumerate(FIELDS)]
        target = self.item(item)
        interest = self.attention(target, self.item(history), history > 0)
        x = torch.cat(fields + [target, interest, torch.log1p(dense)], dim=1)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        logits = []
        for gate, tower in zip(self.gates, self.towers):
            weight = torch.softmax(gate(x), dim=-1)
            mixed = torch.einsum("be,bed->bd", weight, outputs)
            logits.append(tower(mixed))
        p_ctr, p_cvr = (torch.sigmoid(z) for z in logits)
        return p_ctr, p_ctr * p_cvr

    def l2(self):
        tables = [e.weight for e in self.embeddings.values()] + [self.item.weight]
        return sum((w**2).sum() for w in tables)


def initial(name, shape):
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    if "alpha" in name or name == "attention.net.1.weight":
        return np.full(shape, 0.25, np.float32) + rng.uniform(0, 0.1, shape).astype(np.float32)
    scale = 0.3 if len(shape) == 1 or "item" in name or "embeddings" in name else 1 / np.sqrt(shape[-1])
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def make_batch(step):
    rng = np.random.RandomState(7 + step)
    sparse = np.stack([rng.randint(0, n, BATCH) for n in FIELDS.values()], 1)
    dense = rng.exponential(3.0, (BATCH, 2)).astype(np.float32)
    item = rng.randint(1, ITEMS, BATCH)
    history = rng.randint(1, ITEMS, (BATCH, HIST))
    history[np.arange(HIST)[None] >= rng.randint(1, HIST + 1, (BATCH, 1))] = 0
    click = (rng.rand(BATCH) < 0.5).astype(np.float32)
    click[0] = 1
    return sparse, dense, item, history, click, click * (rng.rand(BATCH) < 0.6).astype(np.float32)


def main():
    net = MMoE()
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(torch.from_numpy(initial(name, tuple(p.shape))))
    opt = torch.optim.Adagrad(net.parameters(), lr=0.05, initial_accumulator_value=0.1)
    bce = nn.BCELoss()
    net.train()
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            sparse, dense, item, history, click, buy = (torch.from_numpy(a) for a in make_batch(step))
            p_ctr, p_ctcvr = net(sparse, dense, item, history)
            loss = bce(p_ctr, click) + 0.5 * bce(p_ctcvr, buy) + 0.5e-2 * net.l2()
            opt.zero_grad()
            loss.backward()
            opt.step()
            run.step()
            gnorm = np.sqrt(sum(float(p.grad.double().pow(2).sum()) for p in net.parameters()))
            wnorm = np.sqrt(sum(float(p.detach().double().pow(2).sum()) for p in net.parameters()))
            print(f"step {step} loss {loss.item():.8f} gnorm {gnorm:.8f} wnorm {wnorm:.8f}")


if __name__ == "__main__":
    main()
