"""A small network, and the same one with a fault."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Network(nn.Module):
    """It has what a run could leave changed: running statistics, random numbers, a mode."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.batch = nn.BatchNorm1d(16)
        self.norm = nn.LayerNorm(16, eps=eps)
        self.drop = nn.Dropout(0.25)
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(self.norm(F.gelu(self.batch(self.first(x))))))


def make_network(eps: float = 1e-5) -> Network:
    torch.manual_seed(0)
    return Network(eps)


def make_input() -> torch.Tensor:
    return torch.linspace(-2, 2, 40).reshape(5, 8).sin()
