"""The program that the benchmarks run: one training step of a GPT, in some sizes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from training_program import Program, make_language_program


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    heads: int
    batch: int
    tokens: int
    words: int
    dtype: torch.dtype


SIZES = {
    "cpu": Size(layers=6, width=256, heads=8, batch=4, tokens=128, words=1024, dtype=torch.float32),
    "gpu": Size(layers=8, width=2048, heads=16, batch=4, tokens=1024, words=32000, dtype=torch.bfloat16),
    "large": Size(layers=4, width=4096, heads=32, batch=8, tokens=2048, words=32000, dtype=torch.bfloat16),
}


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm_1 = nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.norm_2 = nn.LayerNorm(size.width)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.gelu = nn.GELU()
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm_1(x)).split(width, dim=2)
        query, key, value = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(self.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(size.words, size.width)
        self.places = nn.Embedding(size.tokens, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_program(size: Size, device: str) -> Program:
    """Always the same weights and the same batch."""
    torch.manual_seed(0)
    model = GPT(size).to(device=device, dtype=size.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, size.words, (size.batch, size.tokens + 1), device=device)
    return make_language_program(model, optimizer, tokens)
