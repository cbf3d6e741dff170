"""A tiny T5 of the `transformers` library, random weights: relative positions, cross attention, tied weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fault.place import Plan
from fault.program import Batch, Program
from fault.pytorch.model.layer import Part, add_residual, make_loss
from fault.pytorch.model.transformer import ATTENTION, CODES, Norm, adopt, register_attention

WORDS, LENGTH, WANTED = 64, 9, 6


class FeedForward(Part):
    layer_norm: nn.Module
    DenseReluDense: nn.Module
    dropout: nn.Module

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        y = self.dropout(self.DenseReluDense(self.layer_norm(hidden_states)))
        return add_residual(self, "sum", hidden_states, y)


class SelfAttention(Part):
    layer_norm: nn.Module
    SelfAttention: nn.Module
    dropout: nn.Module

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_bias: torch.Tensor | None = None,
        past_key_values: Any = None,
        **rest: Any,
    ) -> tuple[Any, ...]:
        normed = self.layer_norm(hidden_states)
        attended, bias, weights = self.SelfAttention(
            normed, mask=attention_mask, position_bias=position_bias, past_key_values=past_key_values, **rest
        )
        return add_residual(self, "sum", hidden_states, self.dropout(attended)), bias, weights


class CrossAttention(Part):
    layer_norm: nn.Module
    EncDecAttention: nn.Module
    dropout: nn.Module

    def forward(self, hidden_states: torch.Tensor, key_value_states: torch.Tensor, **rest: Any) -> tuple[Any, ...]:
        rest["mask"] = rest.pop("attention_mask", None)
        normed = self.layer_norm(hidden_states)
        attended, bias, weights = self.EncDecAttention(normed, key_value_states=key_value_states, **rest)
        return add_residual(self, "sum", hidden_states, self.dropout(attended)), bias, weights


def build_t5(plan: Plan) -> Program:
    from transformers import T5Config, T5ForConditionalGeneration

    register_attention()
    config = T5Config(
        vocab_size=WORDS,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        attn_implementation=ATTENTION,
        initializer_factor=2.0,
    )
    model = T5ForConditionalGeneration(config).train()
    codes = {
        "T5LayerNorm": Norm,
        "T5LayerFF": FeedForward,
        "T5LayerSelfAttention": SelfAttention,
        "T5LayerCrossAttention": CrossAttention,
    }
    adopt(model, plan, CODES | codes)
    compute = make_loss(plan)

    def compute_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        tokens, wanted = batch["tokens"], batch["wanted"]
        logits = model(input_ids=tokens, decoder_input_ids=wanted[:, :-1], use_cache=False).logits
        labels = plan.at(None, "labels", lambda: wanted[:, 1:], slice=lambda: wanted[:, :-1])
        return compute(logits.flatten(0, 1), labels.flatten())

    def make_batch() -> Batch:
        return {"tokens": torch.randint(1, WORDS, (2, LENGTH)), "wanted": torch.randint(1, WORDS, (2, WANTED + 1))}

    tied = [("shared.weight", "lm_head.weight")]
    return Program(model, compute_loss, [make_batch() for _ in range(3)], tied=tied, last="lm_head")
