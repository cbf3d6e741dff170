"""Attention in two spellings: written out, and torch's own."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from fault.place import Plan
from fault.pytorch.model.layer import Dropout, Linear, Part


class Attention(Part):
    """Written out. With a memory it is cross attention: keys and values come from there."""

    def __init__(self, plan: Plan, width: int, heads: int, is_causal: bool, dropout: float = 0.0) -> None:
        super().__init__(plan)
        self.heads = heads
        self.is_causal = is_causal
        self.query, self.key, self.value, self.out = (Linear(plan, width, width) for _ in range(4))
        self.dropout = Dropout(plan, dropout)

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        source = x if memory is None else memory
        query = self.split_heads("query heads", self.query(x))
        key = self.split_heads("key heads", self.key(source))
        value = self.split_heads("value heads", self.value(source))
        scores = self.weigh(query, key)
        weights = self.at(
            "softmax",
            lambda: scores.softmax(-1),
            dimension=lambda: scores.nan_to_num(neginf=-1e9).softmax(-2),
            precision=lambda: scores.bfloat16().softmax(-1).to(scores.dtype),
        )
        weights = self.dropout(weights)
        mixed = self.at(
            "mix",
            lambda: weights @ value,
            operand=(lambda: weights @ key) if key.shape == value.shape else None,
            precision=lambda: (weights.bfloat16() @ value.bfloat16()).to(value.dtype),
        )
        merged = self.at(
            "merge",
            lambda: mixed.transpose(1, 2),
            head=lambda: mixed.roll(1, dims=1).transpose(1, 2),
        )
        return self.out(merged.reshape(x.shape))

    def split_heads(self, site: str, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        size = width // self.heads
        parted = self.at(
            site,
            lambda: x.view(batch, length, self.heads, size),
            head=lambda: x.view(batch, length, size, self.heads).transpose(2, 3),
        )
        return parted.transpose(1, 2)

    def weigh(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        products = self.at(
            "products",
            lambda: query @ key.transpose(-2, -1),
            swapped=(lambda: key @ query.transpose(-2, -1)) if query.shape == key.shape else None,
        )
        right = math.sqrt(query.shape[-1])
        scores = self.at("scale", lambda: products / right, scale=lambda: products / (right * self.plan.factor))
        if not self.is_causal:
            return scores
        mask = self.at(
            "mask",
            lambda: torch.ones(scores.shape[-2:], dtype=torch.bool).tril(),
            mask=lambda: torch.ones(scores.shape[-2:], dtype=torch.bool).tril(1),
            nan=lambda: torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-1),
        )
        return self.at(
            "masked",
            lambda: scores.masked_fill(~mask, float("-inf")),
            mask=lambda: scores.masked_fill(~mask, 0.0),
        )


class FusedAttention(Part):
    """One product for queries, keys and values, and one call for the rest."""

    def __init__(self, plan: Plan, width: int, heads: int, is_causal: bool = True) -> None:
        super().__init__(plan)
        self.heads = heads
        self.is_causal = is_causal
        self.qkv = Linear(plan, width, 3 * width)
        self.out = Linear(plan, width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        joint = self.qkv(x)
        query, key, value = (self.split_heads(part) for part in joint.split(width, dim=2))
        mixed = self.at(
            "attention",
            lambda: F.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal),
            scale=lambda: F.scaled_dot_product_attention(
                query, key, value, is_causal=self.is_causal, scale=self.plan.factor * query.shape[-1] ** -0.5
            ),
            unfused=lambda: self.write_out(query, key, value),
            mask=lambda: F.scaled_dot_product_attention(query, key, value, is_causal=not self.is_causal),
            swapped=lambda: F.scaled_dot_product_attention(key, query, value, is_causal=self.is_causal),
            operand=lambda: F.scaled_dot_product_attention(query, value, value, is_causal=self.is_causal),
        )
        merged = self.at(
            "merge",
            lambda: mixed.transpose(1, 2),
            head=lambda: mixed.flip(1).transpose(1, 2),
        )
        return self.out(merged.reshape(batch, length, width))

    def write_out(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        if self.is_causal:
            scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), float("-inf"))
        return scores.softmax(-1) @ value

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        size = width // self.heads
        return self.at(
            "heads",
            lambda: x.view(batch, length, self.heads, size),
            head=lambda: x.view(batch, length, size, self.heads).transpose(2, 3),
        ).transpose(1, 2)
