"""A transformer encoder with nn.MultiheadAttention in PyTorch; encoder_mindspore.py is the same in MindSpore."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.norm1 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, 2 * width)
        self.linear2 = nn.Linear(2 * width, width)
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended, _ = self.self_attn(x, x, x, need_weights=False)
        x = self.norm1(x + self.dropout(attended))
        return self.norm2(x + self.dropout(self.linear2(F.gelu(self.linear1(x)))))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(48, 32)
        self.positions = nn.Parameter(torch.randn(1, 10, 32) * 0.1)
        self.layers = nn.ModuleList([Layer(32, 4) for _ in range(2)])
        self.classifier = nn.Linear(32, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) * 32**0.5 + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.classifier(x.mean(dim=1))


def compute_loss(network: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(network(tokens), labels, label_smoothing=0.1)
