"""The same graph network on dense, padded adjacency matrices: no scatter, everything is a matmul."""
import os
import sys
from typing import NamedTuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tensorprobe.pytorch import PrecisionDebugger


class DenseBatch(NamedTuple):
    x: torch.Tensor  # (graphs, nodes, features)
    adj: torch.Tensor  # (graphs, to, from), weights of the edges, zero where there is none
    mask: torch.Tensor  # (graphs, nodes)
    y: torch.Tensor


def to_dense(step, graphs=5, features=7):
    rng = np.random.default_rng(900 + step)
    xs, adjs, ys = [], [], []
    for _ in range(graphs):
        n = int(rng.integers(4, 10))
        there = (rng.random((n, n)) < 0.35) & ~np.eye(n, dtype=bool)
        adj = np.zeros((n, n), dtype=np.float32)
        adj[there] = rng.uniform(0.5, 2.0, there.sum())
        adjs.append(adj.T)  # row: where the message arrives
        xs.append(rng.standard_normal((n, features)).astype(np.float32))
        ys.append(rng.standard_normal(2).astype(np.float32))
    most = max(len(x) for x in xs)
    big_x = np.zeros((graphs, most, features), np.float32)
    big_adj = np.zeros((graphs, most, most), np.float32)
    mask = np.zeros((graphs, most), bool)
    for i, (x, adj) in enumerate(zip(xs, adjs)):
        n = len(x)
        big_x[i, :n], big_adj[i, :n, :n], mask[i, :n] = x, adj, True
    return DenseBatch(*map(torch.from_numpy, (big_x, big_adj, mask, np.stack(ys))))


def masked_batch_norm(bn, x, mask):
    """statistics over the real nodes only; padding stays zero"""
    out = torch.zeros_like(x)
    out[mask] = bn(x[mask])
    return out


class DenseGCN(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(c_in, c_out))

    def forward(self, x, adj):
        deg = adj.sum(dim=2)
        d = deg.rsqrt()
        adj = d[:, :, None] * adj * d[:, None, :]
        return torch.bmm(adj, x @ self.weight)


class DenseGAT(nn.Module):
    def __init__(self, c_in, c_head, heads):
        super().__init__()
        self.heads, self.c_head = heads, c_head
        self.weight = nn.Parameter(torch.empty(heads, c_in, c_head))
        self.a = nn.Parameter(torch.empty(heads, 2 * c_head))

    def forward(self, x, adj):
        h = torch.einsum("bnc,hcd->bhnd", x, self.weight)
        a_from, a_to = self.a.split(self.c_head, dim=1)
        e_from = torch.einsum("bhnd,hd->bhn", h, a_from)
        e_to = torch.einsum("bhnd,hd->bhn", h, a_to)
        e = F.leaky_relu(e_to[..., :, None] + e_from[..., None, :], 0.2)
        e = e.masked_fill(adj[:, None] == 0, float("-inf"))
        alpha = torch.softmax(e, dim=-1)
        out = alpha @ h
        return out.permute(0, 2, 1, 3).flatten(2)


class DenseGraphNet(nn.Module):
    def __init__(self, c_in=7, c=12, heads=2, c_out=2):
        super().__init__()
        self.gcn, self.norm1 = DenseGCN(c_in, c), nn.BatchNorm1d(c)
        self.gat, self.norm2 = DenseGAT(c, c // heads, heads), nn.BatchNorm1d(c)
        self.fc1, self.fc2 = nn.Linear(2 * c, c), nn.Linear(c, c_out)

    def forward(self, b):
        adj = b.adj + torch.eye(b.adj.shape[-1])
        h = F.elu(masked_batch_norm(self.norm1, self.gcn(b.x, adj), b.mask))
        h = h + F.elu(masked_batch_norm(self.norm2, self.gat(h, adj), b.mask))
        mean = (h * b.mask[..., None]).sum(dim=1) / b.mask.sum(dim=1, keepdim=True)
        top = h.masked_fill(~b.mask[..., None], float("-inf")).max(dim=1).values
        return self.fc2(F.elu(self.fc1(torch.cat([mean, top], dim=-1))))


def load_sparse(net, path):
    sd = torch.load(path)
    with torch.no_grad():
        net.gcn.weight.copy_(sd["gcn.lin.weight"].T)
        net.gat.weight.copy_(sd["gat.lin.weight"].unflatten(0, (net.gat.heads, -1)).transpose(1, 2))
        net.gat.a.copy_(torch.cat([sd["gat.att_src"], sd["gat.att_dst"]], dim=1))
    for ours, theirs in ((net.norm1, "bn1."), (net.norm2, "bn2."), (net.fc1, "readout.0."), (net.fc2, "readout.2.")):
        ours.load_state_dict({k[len(theirs):]: v for k, v in sd.items() if k.startswith(theirs)})


def train(folder):
    net = DenseGraphNet()
    load_sparse(net, os.path.join(os.environ["WEIGHTS"], "gat.pt"))
    optim = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.02, eps=1e-6)
    probe = PrecisionDebugger(dump_path=folder, level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "2"))):
        data = to_dense(step)
        probe.start(net)
        prediction = net(data)
        error = (prediction - data.y).abs()
        loss = torch.where(error < 0.5, error.square(), error - 0.25).mean()
        loss.backward()
        optim.step()
        probe.stop()
        flat = lambda ts: torch.cat([t.detach().double().flatten() for t in ts])
        print(f"step {step} loss {loss.item():.8f} grad {flat(p.grad for p in net.parameters() if p.grad is not None).norm():.8f} "
              f"params {flat(net.parameters()).norm():.8f} buffers {flat(net.buffers()).abs().sum():.8f}")
        optim.zero_grad()
        probe.step()


if __name__ == "__main__":
    train(sys.argv[1])
