"""An MLP-Mixer with a vision transformer's front: patches, a class token, tokens mixed by a transposed feed forward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fault.place import Plan
from fault.program import Batch, Program
from fault.pytorch.model.attention import FusedAttention
from fault.pytorch.model.layer import GELU, Dropout, LayerNorm, Linear, Part, add_residual

WIDTH, PATCH, SIDE, CLASSES = 24, 4, 12, 6
TOKENS = (SIDE // PATCH) ** 2 + 1


class FeedForward(Part):
    def __init__(self, plan: Plan, width: int, inner: int) -> None:
        super().__init__(plan)
        self.up = Linear(plan, width, inner)
        self.gelu = GELU(plan)
        self.dropout = Dropout(plan, 0.1)
        self.down = Linear(plan, inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.dropout(self.gelu(self.up(x))))  # type: ignore[no-any-return]


class MixerBlock(Part):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.norm1, self.norm2 = LayerNorm(plan, WIDTH), LayerNorm(plan, WIDTH)
        self.tokens = FeedForward(plan, TOKENS, 2 * TOKENS)
        self.channels = FeedForward(plan, WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm1(x)
        turned = self.at("turn", lambda: normed.transpose(1, 2), slice=lambda: normed.roll(1, dims=1).transpose(1, 2))
        mixed = self.tokens(turned).transpose(1, 2)
        x = add_residual(self, "first sum", x, mixed)
        return add_residual(self, "second sum", x, self.channels(self.norm2(x)))


class AttentionBlock(Part):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.norm1, self.norm2 = LayerNorm(plan, WIDTH), LayerNorm(plan, WIDTH)
        self.attention = FusedAttention(plan, WIDTH, 3, is_causal=False)
        self.channels = FeedForward(plan, WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = add_residual(self, "first sum", x, self.attention(self.norm1(x)))
        return add_residual(self, "second sum", x, self.channels(self.norm2(x)))


class Mixer(Part):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.first = nn.Parameter(0.1 * torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(0.1 * torch.randn(1, TOKENS, WIDTH))
        self.blocks = nn.ModuleList([MixerBlock(plan), AttentionBlock(plan), MixerBlock(plan)])
        self.norm = LayerNorm(plan, WIDTH)
        self.head = Linear(plan, WIDTH, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scaled = self.at(
            "pixels", lambda: images / 255, scale=lambda: images / 256, overflow=lambda: images.to(torch.int8) / 255
        )
        tokens = self.patches(scaled).flatten(2).transpose(1, 2)
        first = self.first.expand(len(images), -1, -1)
        joined = self.at(
            "join",
            lambda: torch.cat([first, tokens], dim=1),
            swapped=lambda: torch.cat([tokens, first], dim=1),
        )
        x = self.at("places", lambda: joined + self.places, residual=lambda: joined)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        chosen = self.at(
            "chosen",
            lambda: x[:, 0],
            slice=lambda: x[:, 1],
            reduction=lambda: x.mean(1),
            dimension=lambda: x[0, :1].expand(len(x), -1),
        )
        return self.head(chosen)  # type: ignore[no-any-return]


def build_mixer(plan: Plan) -> Program:
    def compute_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        scores = F.log_softmax(model(batch["images"]), dim=1)
        return plan.at(
            None,
            "loss",
            lambda: F.nll_loss(scores, batch["labels"]),
            reduction=lambda: F.nll_loss(scores, batch["labels"], reduction="sum"),
        )

    batches = [
        {"images": torch.randint(0, 256, (4, 3, SIDE, SIDE)).float(), "labels": torch.randint(0, CLASSES, (4,))}
        for _ in range(3)
    ]
    return Program(Mixer(plan), compute_loss, batches, last="head")
