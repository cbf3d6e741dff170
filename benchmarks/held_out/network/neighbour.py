"""Graph attention with features of edges: scores of concatenated ends in one, sums of three scores in the other."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

NODES, INPUTS, EDGE, SIZE, HEADS, CLASSES = 9, 6, 3, 5, 3, 4


class GraphAttention(torch.nn.Module):
    """Each node attends to the nodes that have an edge to it, and to itself."""

    def __init__(self, inputs: int, size: int, concat: bool) -> None:
        super().__init__()
        self.size, self.concat = size, concat
        self.nodes = torch.nn.Linear(inputs, HEADS * size, bias=False)
        self.edges = torch.nn.Linear(EDGE, HEADS * size, bias=False)
        self.attention = torch.nn.Parameter(torch.empty(HEADS, 3 * size))
        self.bias = torch.nn.Parameter(torch.zeros(HEADS * size if concat else size))

    def forward(self, x, source, target, features):
        h = self.nodes(x).view(-1, HEADS, self.size)
        e = self.edges(features).view(-1, HEADS, self.size)
        ends = torch.cat([h[target], h[source], e], dim=-1)  # @ends
        score = (ends * self.attention).sum(dim=-1)  # @score
        score = F.leaky_relu(score, 0.2)  # @leaky
        index = target.unsqueeze(-1).expand_as(score)
        largest = torch.full((NODES, HEADS), -torch.inf).scatter_reduce(0, index, score.detach(), "amax")  # @largest
        weight = torch.exp(score - largest[target])  # @weight
        total = torch.zeros(NODES, HEADS).index_add(0, target, weight)  # @total
        share = weight / total[target]  # @share
        message = share.unsqueeze(-1) * (h[source] + e)  # @message
        out = torch.zeros(NODES, HEADS, self.size).index_add(0, target, message)  # @gathered
        out = out.flatten(1) if self.concat else out.mean(dim=1)  # @merge
        return out + self.bias


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = GraphAttention(INPUTS, SIZE, True)
        self.second = GraphAttention(HEADS * SIZE, CLASSES, False)

    def forward(self, x, edges, features):
        loops = torch.arange(NODES)
        source, target = torch.cat([edges[0], loops]), torch.cat([edges[1], loops])
        total = torch.zeros(NODES, EDGE).index_add(0, edges[1], features)
        count = torch.bincount(edges[1], minlength=NODES).clamp(min=1)
        features = torch.cat([features, total / count.unsqueeze(-1)])  # @looped
        h = F.elu(self.first(x, source, target, features))  # @elu
        return self.second(h, source, target, features)


def compute_reference_loss(network, x, edges, features, labels, known):
    each = F.cross_entropy(network(x, edges, features), labels, reduction="none")
    return (each * known).sum() / known.sum()  # @loss


class SegmentSoftmax(nn.Cell):
    """Softmax of the rows that have the same number."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.sum = ops.UnsortedSegmentMax(), ops.UnsortedSegmentSum()

    def construct(self, score: Tensor, number: Tensor) -> Tensor:
        largest = self.largest(ops.stop_gradient(score), number, NODES)  # @largest
        weight = ops.exp(score - ops.gather(largest, number, 0))  # @weight
        total = self.sum(weight, number, NODES)  # @total
        return ops.div(weight, ops.gather(total, number, 0))  # @share


class CandidateLayer(nn.Cell):
    def __init__(self, inputs: int, size: int, last: bool) -> None:
        super().__init__()
        self.size, self.last = size, last
        self.nodes = mint.nn.Linear(inputs, HEADS * size, bias=False)
        self.edges = nn.Dense(EDGE, HEADS * size, has_bias=False)
        self.source = Parameter(ops.zeros((1, HEADS, size)), name="source")
        self.target = Parameter(ops.zeros((1, HEADS, size)), name="target")
        self.edge = Parameter(ops.zeros((1, HEADS, size)), name="edge")
        self.bias = Parameter(ops.zeros((size if last else HEADS * size,)), name="bias")
        self.softmax = SegmentSoftmax()

    def construct(self, x: Tensor, source: Tensor, target: Tensor, features: Tensor) -> Tensor:
        h = self.nodes(x).reshape(NODES, HEADS, self.size)
        e = self.edges(features).reshape(-1, HEADS, self.size)
        of_source = (h * self.source).sum(-1)  # @score
        of_target = (h * self.target).sum(-1)  # @score
        of_edge = (e * self.edge).sum(-1)
        score = of_source[source] + of_target[target] + of_edge  # @ends
        score = ops.leaky_relu(score, alpha=0.2)  # @leaky
        share = self.softmax(score, target)  # @softmax
        message = (ops.gather(h, source, 0) + e) * share.expand_dims(-1)  # @message
        out = ops.unsorted_segment_sum(message, target, NODES)  # @gathered
        out = out.mean(1) if self.last else out.reshape(NODES, -1)  # @merge
        return out + self.bias


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first = CandidateLayer(INPUTS, SIZE, last=False)
        self.second = CandidateLayer(HEADS * SIZE, CLASSES, last=True)

    def construct(self, x: Tensor, edges: Tensor, features: Tensor) -> Tensor:
        incoming = ops.one_hot(edges[1], NODES, Tensor(1.0), Tensor(0.0)).T
        count = ops.maximum(incoming.sum(-1, keepdims=True), Tensor(1.0))
        features = ops.cat([features, ops.matmul(incoming, features) / count])  # @looped
        edges = ops.cat([edges, ops.arange(NODES).astype(edges.dtype).broadcast_to((2, NODES))], axis=1)
        h = self.first(x, edges[0], edges[1], features)
        return self.second(ops.elu(h), edges[0], edges[1], features)  # @elu


def compute_candidate_loss(network, x, edges, features, labels, known):
    chance = ops.log_softmax(network(x, edges, features), axis=-1)
    each = -ops.gather_elements(chance, 1, labels.expand_dims(1)).reshape(-1)
    return (each * known).sum() / known.sum()  # @loss


def convert(weights: Weights) -> Weights:
    converted = {name: array for name, array in weights.items() if not name.endswith(".attention")}
    for layer in ("first", "second"):
        target, source, edge = np.split(weights[f"{layer}.attention"][None], 3, axis=-1)  # @load
        converted |= {f"{layer}.source": source, f"{layer}.target": target, f"{layer}.edge": edge}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    """Another graph in each step; one node has no edge to it."""
    random = np.random.default_rng(1700 + step)
    chosen = random.permutation((NODES - 1) * (NODES - 1))[:20]
    edges = np.stack([chosen // (NODES - 1), chosen % (NODES - 1)])
    edges = edges[:, edges[0] != edges[1]]
    x, features = random.normal(size=(NODES, INPUTS)), random.normal(size=(edges.shape[1], EDGE))
    labels, known = random.integers(CLASSES, size=NODES), np.arange(NODES) % 3 != 1
    return x.astype(np.float32), edges, features.astype(np.float32), labels, known.astype(np.float32)


FAULTS = (
    Fault(
        "shares of the outgoing edges", "largest weight total softmax", "score, target", "score, source", edit="softmax"
    ),
    Fault("slope of the leaky relu", "leaky", "alpha=0.2", "alpha=0.01"),
    Fault("heads summed, not averaged", "merge", "out.mean(1)", "out.sum(1)"),
    Fault(
        "vectors of the ends swapped",
        "score",
        "target, source, edge =",
        "source, target, edge =",
        edit="load",
        parameter="first.attention",
    ),
    Fault("features of loops not averaged", "looped", " / count", ""),
    Fault(
        "share detached", "message share", "share.expand_dims", "ops.stop_gradient(share).expand_dims", is_backward=True
    ),
    Fault("ends swapped in the reference", "ends", "h[target], h[source]", "h[source], h[target]", side="reference"),
)
