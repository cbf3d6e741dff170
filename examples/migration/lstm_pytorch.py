"""A recurrent classifier of token sequences in PyTorch; lstm_mindspore.py is the same in MindSpore."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(48, 16)
        self.lstm = nn.LSTM(16, 24, batch_first=True)
        self.proj = nn.Linear(24, 16)
        self.out = nn.Linear(16, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embed(tokens))
        return self.out(torch.tanh(self.proj(states[:, -1])))


def compute_loss(network: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.nll_loss(F.log_softmax(network(tokens), dim=-1), labels)
