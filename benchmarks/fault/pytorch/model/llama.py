"""A tiny Llama of the `transformers` library, random weights: rotary positions, grouped heads, gated feed forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fault.place import Plan
from fault.program import Batch, Program
from fault.pytorch.model.layer import Part, add_residual, make_loss
from fault.pytorch.model.transformer import ATTENTION, CODES, Norm, adopt, register_attention

WORDS, LENGTH = 64, 10


class Rotary(Part):
    inv_freq: torch.Tensor
    attention_scaling: float

    @torch.no_grad()
    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = position_ids[..., None].float()
        angles = self.at(
            "angles",
            lambda: places * self.inv_freq,
            slice=lambda: (places + 1) * self.inv_freq,
            stale=lambda: places * self.inv_freq.flip(0),
            overflow=lambda: (position_ids[..., None] * 30).to(torch.int8) * self.inv_freq,
            precision=lambda: (places.bfloat16() * self.inv_freq.bfloat16()).float(),
        )
        both = self.at(
            "both",
            lambda: torch.cat((angles, angles), dim=-1),
            head=lambda: angles.repeat_interleave(2, dim=-1),
        )
        sines = self.at("sines", lambda: both.sin(), swapped=lambda: (-both).sin())
        return both.cos().to(x.dtype), sines.to(x.dtype)


class FeedForward(Part):
    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module
    act_fn: nn.Module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.act_fn(self.gate_proj(x)), self.up_proj(x)
        return self.down_proj(self.at("product", lambda: gate * up, operand=lambda: gate * gate, residual=lambda: up))  # type: ignore[no-any-return]


class Layer(Part):
    input_layernorm: nn.Module
    self_attn: nn.Module
    post_attention_layernorm: nn.Module
    mlp: nn.Module

    def forward(self, hidden_states: torch.Tensor, **rest: Any) -> torch.Tensor:
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **rest)
        x = add_residual(self, "first sum", hidden_states, attended)
        return add_residual(self, "second sum", x, self.mlp(self.post_attention_layernorm(x)))


def build_llama(plan: Plan) -> Program:
    from transformers import LlamaConfig, LlamaForCausalLM

    register_attention()
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation=ATTENTION,
        attention_bias=True,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).train()
    codes = {"LlamaRMSNorm": Norm, "LlamaRotaryEmbedding": Rotary, "LlamaMLP": FeedForward, "LlamaDecoderLayer": Layer}
    adopt(model, plan, CODES | codes)
    compute = make_loss(plan)

    def compute_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        tokens = batch["tokens"]
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        labels = plan.at(None, "labels", lambda: tokens[:, 1:], slice=lambda: tokens[:, :-1])
        return compute(logits.flatten(0, 1), labels.flatten())

    return Program(
        model, compute_loss, [{"tokens": torch.randint(0, WORDS, (2, LENGTH + 1))} for _ in range(3)], last="lm_head"
    )
