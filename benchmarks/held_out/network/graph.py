"""Message passing over the edges of small graphs, summed at nodes and graphs; index_add against segments."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

NODES, GRAPHS, WIDTH, EDGE = 18, 3, 12, 4


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.message = torch.nn.Linear(2 * WIDTH + EDGE, WIDTH)
        self.update = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, h: torch.Tensor, source: torch.Tensor, target: torch.Tensor, edge: torch.Tensor) -> torch.Tensor:
        pairs = torch.cat([h[source], h[target], edge], dim=-1)  # @pairs @gathered
        message = F.leaky_relu(self.message(pairs))  # @message
        total = torch.zeros_like(h).index_add(0, target, message)  # @total
        degree = torch.bincount(target, minlength=len(h)).clamp(min=1)  # @degree
        mean = total / degree.unsqueeze(-1)  # @mean
        update = torch.relu(self.update(torch.cat([h, mean], dim=-1)))  # @update
        return h + update  # @residual


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(5, WIDTH)
        self.layers = torch.nn.ModuleList([Layer(), Layer()])
        self.readout = torch.nn.Linear(WIDTH, 1)

    def forward(self, x, edge, source, target, member):
        h = self.embed(x)  # @embed
        for layer in self.layers:
            h = layer(h, source, target, edge)
        pooled = h.new_zeros(GRAPHS, WIDTH).index_add(0, member, h)  # @pool
        return self.readout(torch.tanh(pooled / 6)).squeeze(-1)  # @readout


def compute_reference_loss(network, x, edge, source, target, member, wanted):
    return F.mse_loss(network(x, edge, source, target, member), wanted)  # @loss


class CandidateLayer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Dense(2 * WIDTH + EDGE, WIDTH)
        self.update = nn.Dense(2 * WIDTH, WIDTH)

    def construct(self, h: Tensor, source: Tensor, target: Tensor, edge: Tensor) -> Tensor:
        from_source = ops.gather(h, source, 0)  # @gathered
        from_target = ops.gather(h, target, 0)  # @gathered
        pairs = mint.cat((from_source, from_target, edge), dim=-1)  # @pairs
        message = ops.leaky_relu(self.message(pairs), 0.01)  # @message
        total = ops.unsorted_segment_sum(message, target, h.shape[0])  # @total
        ones = ops.ones((target.shape[0], 1), h.dtype)
        degree = ops.unsorted_segment_sum(ones, target, h.shape[0]).clamp(min=1)  # @degree
        mean = total / degree  # @mean
        update = ops.relu(self.update(mint.cat((h, mean), dim=-1)))  # @update
        return ops.add(h, update)  # @residual


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Dense(5, WIDTH)
        self.layers = nn.CellList([CandidateLayer(), CandidateLayer()])
        self.readout = nn.Dense(WIDTH, 1)

    def construct(self, x, edge, source, target, member):
        h = self.embed(x)  # @embed
        for layer in self.layers:
            h = layer(h, source, target, edge)
        pooled = ops.unsorted_segment_sum(h, member, GRAPHS)  # @pool
        return self.readout(mint.tanh(pooled / 6)).squeeze(-1)  # @readout


def compute_candidate_loss(network, x, edge, source, target, member, wanted):
    return ops.mse_loss(network(x, edge, source, target, member), wanted)  # @loss


def convert(weights: Weights) -> Weights:
    return dict(weights)


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(100 + step)
    member = np.repeat(np.arange(GRAPHS), NODES // GRAPHS)
    source, target = (random.integers(6, size=40) for _ in range(2))
    offset = 6 * random.integers(GRAPHS, size=40)
    numbers = (random.normal(size=size).astype(np.float32) for size in ((NODES, 5), (40, EDGE), GRAPHS))
    x, edge, wanted = numbers
    return x, edge, source + offset, target + offset, member, wanted


FAULTS = (
    Fault("ends of the edge swapped in the concat", "pairs", "from_source, from_target", "from_target, from_source"),
    Fault("sum in the place of the mean", "mean update", "total / degree", "total"),
    Fault("messages summed at the source", "total", "message, target", "message, source"),
    Fault("slope of the leaky relu left to its default", "message", ", 0.01", ""),
    Fault("missing residual", "residual gathered", "ops.add(h, update)", "update"),
    Fault("maximum over the nodes of a graph", "pool", "unsorted_segment_sum(h", "unsorted_segment_max(h"),
    Fault("reduction of the loss", "loss", "wanted)", 'wanted, reduction="sum")'),
    Fault("mean detached", "mean update", "total / degree", "ops.stop_gradient(total / degree)", is_backward=True),
    Fault("slope in the reference", "message", "self.message(pairs))", "self.message(pairs), 0.2)", side="reference"),
)
