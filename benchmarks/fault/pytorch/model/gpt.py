"""A GPT: tied input and output weights, dropout, token pairs hashed into buckets with integer arithmetic."""

from __future__ import annotations

import torch
from torch import nn

from fault.place import Plan
from fault.program import Batch, Program
from fault.pytorch.model.attention import Attention, FusedAttention
from fault.pytorch.model.layer import GELU, Dropout, LayerNorm, Linear, Part, add_residual, make_loss

WORDS, BUCKETS, LENGTH, WIDTH, HEADS = 60, 32, 12, 32, 4


class Block(Part):
    def __init__(self, plan: Plan, is_fused: bool) -> None:
        super().__init__(plan)
        self.norm1 = LayerNorm(plan, WIDTH)
        self.attention: nn.Module = (
            FusedAttention(plan, WIDTH, HEADS)
            if is_fused
            else Attention(plan, WIDTH, HEADS, is_causal=True, dropout=0.1)
        )
        self.norm2 = LayerNorm(plan, WIDTH)
        self.up = Linear(plan, WIDTH, 4 * WIDTH)
        self.gelu = GELU(plan)
        self.down = Linear(plan, 4 * WIDTH, WIDTH)
        self.dropout = Dropout(plan, 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = add_residual(self, "first sum", x, self.attention(self.norm1(x)))
        y = self.dropout(self.down(self.gelu(self.up(self.norm2(x)))))
        return add_residual(self, "second sum", x, y)


class GPT(Part):
    def __init__(self, plan: Plan, layers: int) -> None:
        super().__init__(plan)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH + 1, WIDTH)
        self.pairs = nn.Embedding(BUCKETS, WIDTH)
        self.blocks = nn.ModuleList(Block(plan, is_fused=bool(layer % 2)) for layer in range(layers))
        self.norm = LayerNorm(plan, WIDTH)
        self.head = Linear(plan, WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        places = self.at("places", lambda: torch.arange(length), slice=lambda: torch.arange(1, length + 1))
        hashed = self.at(
            "hash",
            lambda: tokens * 40503,
            overflow=lambda: (tokens.short() * 40503).long(),
        )
        pairs = self.pairs((hashed // 4096) % BUCKETS)
        x = self.words(tokens) + self.places(places) + pairs
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build_gpt(plan: Plan, layers: int = 3) -> Program:
    compute = make_loss(plan)

    def compute_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        tokens = batch["tokens"]
        logits = model(tokens[:, :-1])
        labels = plan.at(None, "labels", lambda: tokens[:, 1:], slice=lambda: tokens[:, :-1])
        return compute(logits.flatten(0, 1), labels.flatten())

    batches = [{"tokens": torch.randint(0, WORDS, (3, LENGTH + 1))} for _ in range(3)]
    return Program(GPT(plan, layers), compute_loss, batches, tied=[("words.weight", "head.weight")], last="head")
