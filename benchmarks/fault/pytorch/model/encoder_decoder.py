"""An encoder and a decoder with cross attention: padding, a table of positions, an activation with its own backward."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fault.place import Plan
from fault.program import Batch, Program
from fault.pytorch.model.attention import Attention
from fault.pytorch.model.layer import Dropout, Linear, Part, RMSNorm, add_residual, pass_on

WORDS, WIDTH, HEADS, LENGTH, PADDING = 50, 24, 3, 9, 0


class Settings:
    """An argument that a record cannot show: an object."""

    def __init__(self, factor: float) -> None:
        self.factor = factor


class SquaredReLU(torch.autograd.Function):
    """With the backward written by hand: right when the factor is 2."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, settings: Settings) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.factor = settings.factor
        return x.clamp(min=0).square()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * ctx.factor * x.clamp(min=0), None


class FeedForward(Part):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.up = Linear(plan, WIDTH, 3 * WIDTH)
        self.gate = Linear(plan, WIDTH, 3 * WIDTH)
        self.down = Linear(plan, 3 * WIDTH, WIDTH)
        self.dropout = Dropout(plan, 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up, gate = self.up(x), self.gate(x)
        active = self.at(
            "activation",
            lambda: SquaredReLU.apply(up, Settings(2.0)),
            gradient_formula=lambda: SquaredReLU.apply(up, Settings(2.0 * self.plan.factor)),
            activation=lambda: F.relu(up),
        )
        product = self.at(
            "product",
            lambda: active * gate,
            operand=lambda: active * up,
            precision=lambda: (active.bfloat16() * gate.bfloat16()).to(x.dtype),
        )
        return self.dropout(self.down(product))


class Layer(Part):
    """Of the encoder, or of the decoder when there is a memory."""

    def __init__(self, plan: Plan, has_memory: bool) -> None:
        super().__init__(plan)
        self.norm1, self.norm3 = RMSNorm(plan, WIDTH), RMSNorm(plan, WIDTH)
        self.attention = Attention(plan, WIDTH, HEADS, is_causal=has_memory, dropout=0.1)
        self.feed_forward = FeedForward(plan)
        if has_memory:
            self.norm2 = RMSNorm(plan, WIDTH)
            self.cross = Attention(plan, WIDTH, HEADS, is_causal=False, dropout=0.1)

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        x = add_residual(self, "first sum", x, self.attention(self.norm1(x)))
        if memory is not None:
            asked = self.cross(self.norm2(x), memory)
            x = add_residual(self, "second sum", x, asked)
        return add_residual(self, "last sum", x, self.feed_forward(self.norm3(x)))


class Embedding(Part):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.words = nn.Embedding(WORDS, WIDTH)
        places = torch.arange(LENGTH + 2)[:, None] / 50 ** (torch.arange(WIDTH) / WIDTH)
        self.register_buffer("table", torch.cat([places.sin()[:, ::2], places.cos()[:, ::2]], 1), persistent=False)
        self.register_buffer("old_table", torch.cat([places.cos()[:, ::2], places.sin()[:, ::2]], 1), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        words = self.words(tokens)
        scaled = self.at("scale", lambda: words * WIDTH**0.5, scale=lambda: words * (WIDTH + 1) ** 0.5)
        length = tokens.shape[1]
        places = self.at(
            "places",
            lambda: self.table[:length],
            slice=lambda: self.table[1 : length + 1],
            stale=lambda: self.old_table[:length],
        )
        return self.at("sum", lambda: scaled + places, residual=lambda: scaled, swapped=lambda: scaled - places)


class EncoderDecoder(Part):
    def __init__(self, plan: Plan, layers: int = 2) -> None:
        super().__init__(plan)
        self.embedding = Embedding(plan)
        self.encoder = nn.ModuleList(Layer(plan, has_memory=False) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(plan, has_memory=True) for _ in range(layers))
        self.norm = RMSNorm(plan, WIDTH)
        self.head = Linear(plan, WIDTH, WORDS)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory = self.embedding(source)
        for layer in self.encoder:
            memory = layer(memory)
        present = source != PADDING
        memory = self.at(
            "padding",
            lambda: memory.masked_fill(~present[..., None], 0.0),
            mask=lambda: memory.masked_fill(present[..., None], 0.0),
        )
        memory = pass_on(self.plan, self, "memory", memory)
        x = self.embedding(target)
        for layer in self.decoder:
            x = layer(x, memory)
        return self.head(self.norm(x))


def build_encoder_decoder(plan: Plan) -> Program:
    def compute_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        logits = model(batch["source"], batch["target"][:, :-1])
        labels = plan.at(None, "labels", lambda: batch["target"][:, 1:], slice=lambda: batch["target"][:, :-1])
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        weights = (labels.flatten() != PADDING).to(logits.dtype)
        weighted = plan.at(None, "weights", lambda: losses * weights, mask=lambda: losses * (1 - weights))
        total = plan.at(None, "total", lambda: weighted.sum(), reduction=lambda: weighted.mean())
        return plan.at(
            None, "mean", lambda: total / weights.sum(), scale=lambda: total / weights.numel(), nan=lambda: total / 0
        )

    def make_batch() -> Batch:
        source, target = torch.randint(1, WORDS, (3, LENGTH)), torch.randint(1, WORDS, (3, LENGTH))
        source[0, -3:] = target[1, -2:] = PADDING
        return {"source": source, "target": target}

    return Program(EncoderDecoder(plan), compute_loss, [make_batch() for _ in range(3)], last="head")
