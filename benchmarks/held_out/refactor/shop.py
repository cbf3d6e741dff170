"""Goods in small graphs, by bags of words and edges one by one; a bag layer and dense neighbours after the refactor."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from held_out.fault import Fault
from held_out.weight import Weights

TERMS, WIDTH, HEADS, SIZE, GRAPHS, NODES, EDGES, TRIPLES = 25, 12, 3, 4, 3, 14, 30, 8
SLOPE, PART, BETA = 0.2, 0.7, 0.5


class GATConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.att_src, self.att_dst = nn.Parameter(torch.zeros(HEADS, SIZE)), nn.Parameter(torch.zeros(HEADS, SIZE))
        self.bias = nn.Parameter(torch.zeros(HEADS * SIZE))

    def forward(self, x, edge_index):
        src, dst = edge_index
        h = self.lin(x).view(-1, HEADS, SIZE)  # @hidden
        alpha_src = (h * self.att_src).sum(dim=-1)  # @from
        alpha_dst = (h * self.att_dst).sum(dim=-1)  # @to
        alpha = F.leaky_relu(alpha_src[src] + alpha_dst[dst], SLOPE)  # @scores @leaky
        index = dst[:, None].expand_as(alpha)
        most = torch.zeros_like(alpha_src).scatter_reduce(0, index, alpha.detach(), "amax", include_self=False)
        alpha = torch.exp(alpha - most[dst])  # @soft
        total = torch.zeros_like(alpha_src).index_add(0, dst, alpha)  # @soft
        alpha = alpha / total[dst]  # @soft @chances
        messages = h[src] * alpha.unsqueeze(-1)  # @mixed
        out = messages.new_zeros(h.shape).index_add_(0, dst, messages)  # @mixed
        return out.flatten(1) + self.bias  # @attended


class GCNConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, edge_index):
        src, dst = edge_index
        degree = torch.zeros(len(x), dtype=x.dtype).index_add_(0, dst, torch.ones_like(dst, dtype=x.dtype))  # @degree
        norm = degree.pow(-0.5)[src] * degree.pow(-0.5)[dst]  # @normed
        x = self.lin(x)  # @conv
        messages = x[src] * norm[:, None]  # @spread
        return messages.new_zeros(x.shape).index_add_(0, dst, messages)  # @spread


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.terms, self.popularity = nn.Embedding(TERMS, WIDTH), nn.Embedding(TERMS, 1)
        self.conv1, self.conv2 = GATConv(), GCNConv()
        self.norm = nn.LayerNorm(WIDTH)
        self.readout = nn.Linear(2 * WIDTH, 1)

    def forward(self, ids, offsets, edge_index, graph):
        ends = [*offsets.tolist()[1:], len(ids)]
        bags = [ids[start:end] for start, end in zip(offsets.tolist(), ends, strict=True)]
        x = torch.stack([self.terms(bag).mean(dim=0) for bag in bags])  # @bag
        bias = torch.stack([self.popularity(bag).sum() for bag in bags])  # @popular
        loops = torch.arange(len(x)).expand(2, -1)
        edge_index = torch.cat([edge_index, loops], dim=1)  # @neighbours
        h = F.elu(self.conv1(x, edge_index))  # @elu
        h = self.norm(h + x)  # @added @layer_norm
        h = h + F.relu(self.conv2(h, edge_index))  # @relu @added2
        means = torch.stack([h[graph == number].mean(dim=0) for number in range(GRAPHS)])  # @means
        most = torch.stack([h[graph == number].amax(dim=0) for number in range(GRAPHS)])  # @most
        value = self.readout(torch.cat([means, most], dim=1)).squeeze(1)  # @read
        return h, bias, value


def compute_reference_loss(network, ids, offsets, edge_index, graph, triples, prices):
    h, bias, value = network(ids, offsets, edge_index, graph)
    anchor, liked, other = triples.unbind(dim=1)
    positive = (h[anchor] * h[liked]).sum(dim=1) + bias[liked]  # @liked
    negative = (h[anchor] * h[other]).sum(dim=1) + bias[other]  # @other
    ranking = -F.logsigmoid((positive - negative).float()).mean()  # @gap @ranking
    price = F.smooth_l1_loss(value.float(), prices.float(), beta=BETA)  # @price
    return ranking + PART * price  # @loss


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH, HEADS * SIZE))
        self.ends = nn.Parameter(torch.zeros(2, HEADS, SIZE))
        self.bias = nn.Parameter(torch.zeros(HEADS * SIZE))

    def forward(self, x: Tensor, adjacent: Tensor) -> Tensor:
        h = torch.mm(x, self.weight).unflatten(1, (HEADS, SIZE))  # @hidden
        start, end = torch.einsum("nhs,ehs->enh", h, self.ends)  # @from @to @ends
        scores = F.leaky_relu(end[:, None] + start[None], SLOPE)  # @scores @leaky
        scores = scores.masked_fill(~adjacent.unsqueeze(-1), float("-inf"))  # @soft @masked
        chances = torch.softmax(scores, dim=1)  # @soft @chances
        return torch.einsum("ijh,jhs->ihs", chances, h).reshape(len(x), -1) + self.bias  # @mixed @attended


class Candidate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(TERMS, WIDTH, mode="mean")  # @bag_made
        self.fame = nn.EmbeddingBag(TERMS, 1, mode="sum")
        self.attend, self.smooth = Attend(), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.price = nn.Linear(2 * WIDTH, 1)

    def neighbours(self, edges: Tensor) -> Tensor:
        adjacent = torch.eye(NODES, dtype=torch.bool)  # @neighbours @loops
        return adjacent.index_put((edges[1], edges[0]), torch.tensor(True))  # @neighbours @directed

    def spread(self, h: Tensor, adjacent: Tensor) -> Tensor:
        adjacent = adjacent.to(h.dtype)
        root = adjacent.sum(dim=1).rsqrt()  # @degree @normed
        return (root[:, None] * adjacent * root) @ self.smooth(h)  # @normed @conv @spread

    def gather(self, h: Tensor, graph: Tensor) -> Tensor:
        count = torch.bincount(graph, minlength=GRAPHS)  # @means
        means = h.new_zeros(GRAPHS, WIDTH).index_add_(0, graph, h) / count[:, None]  # @means
        index = graph[:, None].expand_as(h)
        most = h.new_zeros(GRAPHS, WIDTH).scatter_reduce(0, index, h, "amax", include_self=False)  # @most
        return torch.cat((means.to(h.dtype), most), dim=1)  # @gathered

    def forward(self, ids: Tensor, offsets: Tensor, edges: Tensor, graph: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, fame = self.bag(ids, offsets), self.fame(ids, offsets).squeeze(1)  # @bag @popular
        adjacent = self.neighbours(edges)
        h = self.norm(F.elu(self.attend(x, adjacent)).add(x))  # @elu @added @layer_norm
        h = h + self.spread(h, adjacent).relu_()  # @relu @added2
        return h, fame, self.price(self.gather(h, graph))[:, 0]  # @read


def compute_candidate_loss(network, ids, offsets, edges, graph, triples, prices):
    h, fame, value = network(ids, offsets, edges, graph)
    who, liked, other = h[triples].unbind(dim=1)
    gap = (who * (liked - other)).sum(dim=-1)  # @liked @other @gap
    gap = gap + fame[triples[:, 1]] - fame[triples[:, 2]]  # @liked @other @gap @famous
    ranking = F.softplus(-gap.float()).mean()  # @ranking
    price = F.huber_loss(value.float(), prices.float(), delta=BETA) / BETA  # @price
    return ranking + PART * price  # @loss


def convert(weights: Weights) -> Weights:
    converted = {"bag.weight": weights["terms.weight"], "fame.weight": weights["popularity.weight"]}
    converted |= {"attend.weight": weights["conv1.lin.weight"].T, "attend.bias": weights["conv1.bias"]}
    converted["attend.ends"] = np.stack([weights["conv1.att_src"], weights["conv1.att_dst"]])
    for old, new in (("conv2.lin", "smooth"), ("norm", "norm"), ("readout", "price")):
        converted |= {f"{new}.{word}": weights[f"{old}.{word}"] for word in ("weight", "bias")}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(9000 + step)
    sizes = random.integers(1, 5, size=NODES)
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    graph = np.sort(np.concatenate([np.repeat(np.arange(GRAPHS), 3), random.integers(GRAPHS, size=NODES - 3 * GRAPHS)]))
    pairs = [(a, b) for a in range(NODES) for b in range(NODES) if a != b and graph[a] == graph[b]]
    pairs = [pairs[number] for number in random.permutation(len(pairs))]
    ring = [(a, b) for a, b in pairs if b == next(n for n in (*range(a + 1, NODES), *range(a)) if graph[n] == graph[a])]
    edges = np.array(list(dict.fromkeys([*ring, *pairs]))[:EDGES]).T.copy()
    triples = np.stack([random.permutation(NODES)[:3] for _ in range(TRIPLES)])
    prices = random.normal(size=GRAPHS).astype(np.float32)
    return random.integers(TERMS, size=sizes.sum()), offsets, edges, graph, triples, prices


FAULTS = (
    Fault("bags summed", "bag", 'mode="mean"', 'mode="sum"', edit="bag_made"),
    Fault(
        "ends of the edges exchanged", "directed neighbours masked soft", "(edges[1], edges[0])", "(edges[0], edges[1])"
    ),
    Fault(
        "no edge to itself",
        "loops neighbours masked soft",
        "torch.eye(NODES, dtype=torch.bool)",
        "torch.zeros(NODES, NODES, dtype=torch.bool)",
    ),
    Fault("start and end exchanged", "ends from to scores", "start, end =", "end, start ="),
    Fault("slope of the library", "leaky scores", ", SLOPE)", ")"),
    Fault("chances of the targets", "chances soft", "dim=1)", "dim=0)"),
    Fault(
        "chances pass no gradient",
        "chances mixed soft",
        'jhs->ihs", chances, h)',
        'jhs->ihs", chances.detach(), h)',
        edit="mixed",
        is_backward=True,
    ),
    Fault(
        "mean of the neighbours", "normed spread", "root[:, None] * adjacent * root", "root[:, None] ** 2 * adjacent"
    ),
    Fault("largest is never below nothing", "most", ", include_self=False", ""),
    Fault("another threshold's scale", "price loss", "delta=BETA) / BETA", "delta=BETA)"),
    Fault(
        "fame of the other left out",
        "famous other gap ranking",
        "fame[triples[:, 1]] - fame[triples[:, 2]]",
        "fame[triples[:, 1]]",
    ),
    Fault(
        "reference ranks the other way", "ranking gap", "positive - negative", "negative - positive", side="reference"
    ),
)
