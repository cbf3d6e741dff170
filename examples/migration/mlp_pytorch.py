"""A multilayer perceptron in PyTorch; mlp_mindspore.py is the same in MindSpore."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(24, 32)
        self.norm = nn.LayerNorm(32)
        self.fc2 = nn.Linear(32, 32)
        self.fc3 = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(x.shape[0], -1)
        x = F.relu(self.norm(self.fc1(x)))
        x = x + F.gelu(self.fc2(x))
        return self.fc3(x)


def compute_loss(network: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(network(x), labels)
