"""A Llama as it is trained: RMSNorm in float32, rotary embeddings, grouped queries, SwiGLU, each layer checkpointed,
fused AdamW."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from training_program import Program, make_language_program

_ROTATION_BASE = 10_000.0


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    inner_width: int
    heads: int
    key_heads: int
    batch: int
    tokens: int
    words: int
    dtype: torch.dtype
    is_compiled: bool = False
    """Are the MLPs compiled, each by itself?"""

    @property
    def head_width(self) -> int:
        return self.width // self.heads


SIZES = {
    "tiny": Size(3, 64, inner_width=176, heads=4, key_heads=2, batch=2, tokens=64, words=512, dtype=torch.float32),
    "2b": Size(
        26, 2560, inner_width=6912, heads=20, key_heads=4, batch=2, tokens=2048, words=32000, dtype=torch.bfloat16
    ),
}


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head_width = size.head_width
        self.query = nn.Linear(size.width, size.width, bias=False)
        self.key = nn.Linear(size.width, size.key_heads * size.head_width, bias=False)
        self.value = nn.Linear(size.width, size.key_heads * size.head_width, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Mlp(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate = nn.Linear(size.width, size.inner_width, bias=False)
        self.up = nn.Linear(size.width, size.inner_width, bias=False)
        self.down = nn.Linear(size.inner_width, size.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm_1 = RMSNorm(size.width)
        self.attention = Attention(size)
        self.norm_2 = RMSNorm(size.width)
        self.mlp = torch.compile(Mlp(size)) if size.is_compiled else Mlp(size)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x), cos, sin)
        return x + self.mlp(self.norm_2(x))


class Llama(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(size.words, size.width)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = RMSNorm(size.width)
        self.head = nn.Linear(size.width, size.words, bias=False)
        powers = torch.arange(0, size.head_width, 2, dtype=torch.float32) / size.head_width
        angles = torch.outer(torch.arange(size.tokens, dtype=torch.float32), _ROTATION_BASE**-powers).repeat(1, 2)
        self.register_buffer("cos", angles.cos().to(size.dtype), persistent=False)
        self.register_buffer("sin", angles.sin().to(size.dtype), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, self.cos, self.sin, use_reentrant=False)
        return self.head(self.norm(x))


def make_model(size: Size, device: str) -> Llama:
    """Made where it stays, in the dtype that it keeps: on a host it would take minutes."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(size.dtype)
    try:
        with torch.device(device):
            return Llama(size)
    finally:
        torch.set_default_dtype(before)


def count_parameters(size: Size) -> int:
    return sum(parameter.numel() for parameter in make_model(size, "meta").parameters())


def make_program(size: Size, device: str) -> Program:
    """Always the same weights and the same batch."""
    torch.manual_seed(0)
    model = make_model(size, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, size.words, (size.batch, size.tokens + 1), device=device)
    return make_language_program(model, optimizer, tokens)
