"""Graph regression with sparse message passing (edge_index, index_add, scatter softmax), as in PyG but by hand."""
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, Tensor

from tensorprobe.pytorch import PrecisionDebugger

NODE_FEATURES = 7
HIDDEN = 12
HEADS = 2


def scatter_softmax(scores: Tensor, index: Tensor, num_nodes: int) -> Tensor:
    """softmax over all edges that end in the same node; scores: (edges, heads)"""
    expanded = index[:, None].expand_as(scores)
    highest = torch.full((num_nodes, scores.shape[1]), float("-inf")).scatter_reduce(0, expanded, scores.detach(), "amax")
    weights = (scores - highest[index]).exp()
    total = torch.zeros(num_nodes, scores.shape[1]).index_add(0, index, weights)
    return weights / total[index]


class GCNConv(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.lin = nn.Linear(n_in, n_out, bias=False)

    def forward(self, x, edge_index, edge_weight):
        src, dst = edge_index
        degree = torch.zeros(len(x)).index_add(0, dst, edge_weight)
        inv_sqrt = degree.pow(-0.5)
        norm = inv_sqrt[src] * edge_weight * inv_sqrt[dst]
        message = self.lin(x)[src] * norm[:, None]
        return torch.zeros(len(x), message.shape[1]).index_add(0, dst, message)


class GATConv(nn.Module):
    def __init__(self, n_in, n_out, heads, negative_slope=0.2):
        super().__init__()
        self.heads = heads
        self.negative_slope = negative_slope
        self.lin = nn.Linear(n_in, heads * n_out, bias=False)
        self.att_src = nn.Parameter(torch.empty(heads, n_out))
        self.att_dst = nn.Parameter(torch.empty(heads, n_out))

    def forward(self, x, edge_index):
        src, dst = edge_index
        h = self.lin(x).view(len(x), self.heads, -1)
        a_src = (h * self.att_src).sum(-1)
        a_dst = (h * self.att_dst).sum(-1)
        scores = F.leaky_relu(a_src[src] + a_dst[dst], self.negative_slope)
        alpha = scatter_softmax(scores, dst, len(x))
        message = h[src] * alpha[..., None]
        out = torch.zeros_like(h).index_add(0, dst, message)
        return out.flatten(1)


class GraphNet(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.gcn = GCNConv(NODE_FEATURES, HIDDEN)
        self.bn1 = nn.BatchNorm1d(HIDDEN)
        self.gat = GATConv(HIDDEN, HIDDEN // HEADS, HEADS)
        self.bn2 = nn.BatchNorm1d(HIDDEN)
        self.dropout = nn.Dropout(dropout)
        self.readout = nn.Sequential(nn.Linear(2 * HIDDEN, HIDDEN), nn.ELU(), nn.Linear(HIDDEN, 2))

    def forward(self, x, edge_index, edge_weight, batch):
        loops = torch.arange(len(x))
        edge_index = torch.cat([edge_index, torch.stack([loops, loops])], dim=1)
        edge_weight = torch.cat([edge_weight, torch.ones(len(x))])
        h = F.elu(self.bn1(self.gcn(x, edge_index, edge_weight)))
        h = h + F.elu(self.bn2(self.gat(self.dropout(h), edge_index)))
        graphs = int(batch.max()) + 1
        count = torch.bincount(batch, minlength=graphs)
        mean = torch.zeros(graphs, h.shape[1]).index_add(0, batch, h) / count[:, None]
        top = torch.full((graphs, h.shape[1]), float("-inf")).scatter_reduce(0, batch[:, None].expand_as(h), h, "amax")
        return self.readout(torch.cat([mean, top], dim=1))


def make_graphs(step, n=5):
    rng = np.random.default_rng(900 + step)
    graphs = []
    for _ in range(n):
        size = int(rng.integers(4, 10))
        adjacency = (rng.random((size, size)) < 0.35) & ~np.eye(size, dtype=bool)
        src, dst = np.nonzero(adjacency)  # directed
        weight = rng.uniform(0.5, 2.0, len(src)).astype(np.float32)
        x = rng.standard_normal((size, NODE_FEATURES)).astype(np.float32)
        y = rng.standard_normal(2).astype(np.float32)
        graphs.append((x, np.stack([src, dst]), weight, y))
    return graphs


def collate(graphs):
    offset, xs, edges, weights, batch = 0, [], [], [], []
    for number, (x, edge_index, weight, _) in enumerate(graphs):
        xs.append(x)
        edges.append(edge_index + offset)
        weights.append(weight)
        batch += [number] * len(x)
        offset += len(x)
    inputs = np.concatenate(xs), np.concatenate(edges, axis=1), np.concatenate(weights), np.array(batch)
    return [torch.from_numpy(a) for a in inputs], torch.from_numpy(np.stack([g[3] for g in graphs]))


def reset(model):
    rng = np.random.default_rng(17)
    for name, p in model.named_parameters():
        z = torch.from_numpy(rng.standard_normal(tuple(p.shape)).astype(np.float32))
        if "bn" in name:
            p.data = (name.endswith("weight") * 1.0) + 0.1 * z
        else:
            p.data = z * 0.7 if "att" in name else z / p.shape[-1] ** 0.5


if __name__ == "__main__":
    model = GraphNet()
    reset(model)
    torch.save(model.state_dict(), os.path.join(os.environ["WEIGHTS"], "gat.pt"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.02, eps=1e-6)
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "2"))):
        inputs, target = collate(make_graphs(step))
        debugger.start(model)
        loss = F.smooth_l1_loss(model(*inputs), target, beta=0.5)
        loss.backward()
        optimizer.step()
        debugger.stop()
        grad = sum(p.grad.double().pow(2).sum() for p in model.parameters() if p.grad is not None) ** 0.5
        size = sum(p.detach().double().pow(2).sum() for p in model.parameters()) ** 0.5
        running = sum(b.double().abs().sum() for b in model.buffers())
        print(f"step {step} loss {loss.item():.8f} grad {grad:.8f} params {size:.8f} buffers {running:.8f}")
        optimizer.zero_grad()
        debugger.step()
