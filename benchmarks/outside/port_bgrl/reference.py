"""Bootstrapped graph latents: two views of a graph, an online encoder with a predictor, a target that follows slowly."""
import copy
import math
import os
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe

NODES, EDGES, FEATURES, EDGE, HEADS, HEAD, OUT = 14, 40, 7, 3, 2, 5, 6


def softmax_over_targets(score, target, nodes):
    index = target[:, None].expand_as(score)
    top = score.new_full((nodes, score.size(1)), -math.inf).scatter_reduce(0, index, score.detach(), "amax")
    exp = (score - top[target]).exp()
    total = score.new_zeros(nodes, score.size(1)).index_add_(0, target, exp)
    return exp / (total[target] + 1e-16)


class GATv2(nn.Module):
    def __init__(self, cin):
        super().__init__()
        self.lin_l = nn.Linear(cin, HEADS * HEAD)
        self.lin_r = nn.Linear(cin, HEADS * HEAD)
        self.lin_edge = nn.Linear(EDGE, HEADS * HEAD, bias=False)
        self.att = nn.Parameter(torch.zeros(1, HEADS, HEAD))
        self.bias = nn.Parameter(torch.zeros(HEADS * HEAD))

    def forward(self, x, edges, kind):
        source, target = edges
        left = self.lin_l(x).view(-1, HEADS, HEAD)
        right = self.lin_r(x).view(-1, HEADS, HEAD)
        message = left.index_select(0, source)
        hidden = F.leaky_relu(message + right.index_select(0, target) + self.lin_edge(kind).view(-1, HEADS, HEAD), 0.2)
        alpha = softmax_over_targets((hidden * self.att).sum(-1), target, len(x))
        out = torch.zeros_like(left).index_add(0, target, message * alpha.unsqueeze(-1))
        return out.flatten(1) + self.bias


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = GATv2(FEATURES), GATv2(HEADS * HEAD)
        self.norm1, self.norm2 = nn.BatchNorm1d(HEADS * HEAD, momentum=0.01), nn.LayerNorm(HEADS * HEAD)
        self.act1, self.act2 = nn.PReLU(), nn.ELU()
        self.skip = nn.Linear(FEATURES, HEADS * HEAD, bias=False)
        self.out = nn.Linear(HEADS * HEAD, OUT)

    def forward(self, x, edges, kind):
        h = self.act1(self.norm1(self.conv1(x, edges, kind)))
        h = self.act2(self.norm2(self.conv2(h, edges, kind) + self.skip(x)))
        return self.out(h)


class BGRL(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = Encoder()
        self.predictor = nn.Sequential(nn.Linear(OUT, 9), nn.PReLU(9), nn.Linear(9, OUT))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    @torch.no_grad()
    def follow(self, rate):
        for slow, fast in zip(self.target.parameters(), self.online.parameters()):
            slow.data.mul_(rate).add_(fast.data, alpha=1 - rate)

    def forward(self, view1, view2):
        p1, p2 = self.predictor(self.online(*view1)), self.predictor(self.online(*view2))
        with torch.no_grad():
            t1, t2 = self.target(*view1), self.target(*view2)
        return 2 - F.cosine_similarity(p1, t2, dim=-1).mean() - F.cosine_similarity(p2, t1, dim=-1).mean()


def initial(name, shape):
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    value = rng.standard_normal(shape)
    if "norm" in name and name.endswith("weight"):
        value = 1 + 0.2 * value
    elif "act" in name or name == "predictor.1.weight":
        value = 0.25 + 0.05 * value
    elif len(shape) == 1:
        value = 0.2 * value
    else:
        value = value / np.sqrt(shape[-1])
    return value.astype(np.float32)


def make_views(step):
    rng = np.random.RandomState(500 + step)
    graph = np.random.RandomState(9)
    x = graph.standard_normal((NODES, FEATURES)).astype(np.float32)
    edges = np.concatenate([graph.randint(0, NODES, (2, EDGES)), np.tile(np.arange(NODES), (2, 1))], axis=1)
    kind = graph.standard_normal((edges.shape[1], EDGE)).astype(np.float32)
    views = []
    for drop_edge, drop_feature in ((0.2, 0.1), (0.4, 0.3)):
        keep = (rng.rand(edges.shape[1]) >= drop_edge) | (np.arange(edges.shape[1]) >= EDGES)
        seen = rng.rand(FEATURES) >= drop_feature
        views.append((x * seen, edges[:, keep], kind[keep]))
    return views


def cosine(step, warm, total, low, high):
    return high * (step + 1) / warm if step < warm else low + (high - low) * 0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))


def main():
    net = BGRL().train()
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(torch.from_numpy(initial(name, tuple(p.shape))))
    optimizer = torch.optim.AdamW([*net.online.parameters(), *net.predictor.parameters()], lr=0.0, weight_decay=1e-2, eps=1e-5)
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            for group in optimizer.param_groups:
                group["lr"] = cosine(step, 2, 10, 1e-4, 5e-3)
            rate = 1 - (1 - 0.9) * (math.cos(math.pi * step / 10) + 1) / 2
            loss = net(*(tuple(torch.from_numpy(a) for a in view) for view in make_views(step)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            net.follow(rate)
            run.step()
            print(f"step {step} loss {loss.item():.8f} w {sum(p.detach().double().pow(2).sum() for p in net.parameters()):.8f}")


if __name__ == "__main__":
    main()
