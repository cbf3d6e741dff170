"""A small GPT with fused attention in PyTorch; gpt_mindspore.py is the same in MindSpore."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = self.c_attn(x).split(width, dim=2)
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in (query, key, value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).contiguous().view(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.act = nn.GELU(approximate="tanh")
        self.c_proj = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.dropout(self.c_proj(self.act(self.c_fc(self.ln_2(x)))))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(48, 32)
        self.wpe = nn.Embedding(10, 32)
        self.h = nn.ModuleList([Block(32, 4) for _ in range(2)])
        self.ln_f = nn.LayerNorm(32)
        self.lm_head = nn.Linear(32, 48, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1])
        x = self.wte(tokens) + self.wpe(places)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def compute_loss(network: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = network(tokens)
    return F.cross_entropy(logits.view(-1, logits.size(-1)), labels.reshape(-1))
