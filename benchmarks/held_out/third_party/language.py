"""Decoders: GPT-NeoX (parallel residual), Qwen3 (norms of query and key), BLOOM (slopes in the place of positions)."""

from __future__ import annotations

import numpy as np

from held_out.model import Model
from held_out.patch import Fault
from held_out.variant import CHECKPOINTING, EVERY, HALVES, SDPA, Inputs

WORDS = 61


def make_tokens(random: np.random.Generator) -> Inputs:
    tokens = random.integers(3, WORDS, size=(2, 10))
    return {"input_ids": tokens, "labels": tokens}


def make_padded_tokens(random: np.random.Generator) -> Inputs:
    tokens = random.integers(3, WORDS, size=(2, 10))
    mask = np.ones_like(tokens)
    mask[:, -2:] = 0
    return {"input_ids": tokens, "attention_mask": mask, "labels": np.where(mask == 1, tokens, -100)}


_NEOX_FAULTS = (
    Fault(
        "epsilon of a norm",
        "gpt_neox.layers.1.post_attention_layernorm",
        "layer_norm",
        setting=("eps", 1e-3),
    ),
    Fault(
        "dropped residual",
        "gpt_neox.layers.0",
        "add layer_norm",
        "mlp_output + attn_output + hidden_states",
        "mlp_output + attn_output",
        paths="gpt_neox.layers.0 gpt_neox.layers.1.input_layernorm",
    ),
    Fault("scale of the scores", "gpt_neox.layers.1.attention", "mul", setting=("scaling", 0.125)),
    Fault(
        "keys turned the other way",
        "gpt_neox.layers.0.attention",
        "add sub mul",
        "(k_rot * cos) + (rotate_half(k_rot) * sin)",
        "(k_rot * cos) - (rotate_half(k_rot) * sin)",
        function="apply_rotary_pos_emb",
    ),
    Fault(
        "tanh gelu",
        "gpt_neox.layers.0.mlp",
        "gelu",
        "self.act(hidden_states)",
        'nn.functional.gelu(hidden_states, approximate="tanh")',
        paths="gpt_neox.layers.0.mlp gpt_neox.layers.0.mlp.act",
    ),
    Fault(
        "detached branch",
        "gpt_neox.layers.1",
        "add detach",
        "mlp_output + attn_output + hidden_states",
        "mlp_output.detach() + attn_output + hidden_states",
        is_backward=True,
    ),
    Fault(
        "scale of the scores, against another attention",
        "gpt_neox.layers.1.attention",
        "mul scaled_dot_product_attention",
        setting=("scaling", 0.125),
        variant="sdpa",
    ),
)

_QWEN_FAULTS = (
    Fault(
        "epsilon of the norm of queries",
        "model.layers.0.self_attn.q_norm",
        "rsqrt add",
        setting=("variance_epsilon", 1e-2),
    ),
    Fault(
        "norm in bfloat16",
        "model.layers.1.input_layernorm",
        "to pow mul mean",
        "hidden_states.to(torch.float32)",
        "hidden_states.to(torch.bfloat16)",
    ),
    Fault(
        "activation on the other branch",
        "model.layers.1.mlp",
        "silu mul",
        "self.act_fn(self.gate_proj(x)) * self.up_proj(x)",
        "self.gate_proj(x) * self.act_fn(self.up_proj(x))",
        paths="model.layers.1.mlp model.layers.1.mlp.act_fn",
    ),
    Fault(
        "mask forgotten",
        "model.layers.0.self_attn",
        "add softmax",
        "attn_weights = attn_weights + attention_mask",
        "attn_weights = attn_weights",
        function="eager_attention_forward",
    ),
    Fault(
        "groups of values tiled",
        "model.layers.0.self_attn",
        "expand reshape repeat getitem matmul",
        "repeat_kv(value, module.num_key_value_groups)",
        "value.repeat(1, module.num_key_value_groups, 1, 1)",
        function="eager_attention_forward",
    ),
    Fault(
        "wrong residual of the MLP",
        "model.layers.0",
        "add",
        "hidden_states = self.mlp(hidden_states)\n        hidden_states = residual + hidden_states",
        "hidden_states = self.mlp(hidden_states)\n        hidden_states = hidden_states + hidden_states",
    ),
    Fault(
        "detached inside a norm",
        "model.norm",
        "mul rsqrt detach",
        "torch.rsqrt(variance + self.variance_epsilon)",
        "torch.rsqrt(variance + self.variance_epsilon).detach()",
        is_backward=True,
    ),
    Fault(
        "activation only in the third step",
        "model.layers.0.mlp",
        "silu gelu",
        "self.act_fn(self.gate_proj(x))",
        "nn.functional.gelu(self.gate_proj(x))",
        paths="model.layers.0.mlp model.layers.0.mlp.act_fn",
        steps=3,
        first_step=2,
    ),
)

_BLOOM_FAULTS = (
    Fault(
        "gradient of the gelu",
        "transformer.h.1.mlp.gelu_impl",
        "gelufunction mul add",
        "+ 0.1070322243 * x",
        "+ 0.0356774081 * x",
        function="bloom_gelu_back",
        is_backward=True,
    ),
    Fault(
        "slopes from one",
        "transformer",
        "sub mul cumsum",
        "cumsum(dim=-1) - 1)",
        "cumsum(dim=-1))",
        function="build_alibi_tensor",
        has_effect=False,
    ),
    Fault("missing scale", "transformer.h.0.self_attention", "baddbmm", setting=("inv_norm_factor", 1.0)),
    Fault(
        "residual from before the attention",
        "transformer.h.0",
        "add",
        "residual = attention_output",
        "residual = hidden_states",
        paths="transformer.h.0 transformer.h.0.mlp",
    ),
    Fault(
        "softmax in bfloat16",
        "transformer.h.1.self_attention",
        "softmax to",
        "dtype=torch.float32",
        "dtype=torch.bfloat16",
    ),
    Fault(
        "queries for keys",
        "transformer.h.0.self_attention",
        "getitem transpose reshape baddbmm",
        "key_layer = fused_qkv[..., 1, :]",
        "key_layer = fused_qkv[..., 0, :]",
        method="_reshape",
    ),
)

_SMALL = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LANGUAGE_MODELS = (
    Model(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        {**_SMALL, "intermediate_size": 64, "hidden_dropout": 0.0, "attention_dropout": 0.0, "use_cache": False},
        make_tokens,
        (SDPA, CHECKPOINTING, HALVES, *EVERY),
        _NEOX_FAULTS,
    ),
    Model(
        "qwen3",
        "Qwen3ForCausalLM",
        "Qwen3Config",
        {**_SMALL, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "use_cache": False},
        make_tokens,
        (SDPA, CHECKPOINTING, HALVES, *EVERY),
        _QWEN_FAULTS,
    ),
    Model(
        "bloom",
        "BloomForCausalLM",
        "BloomConfig",
        {
            "vocab_size": WORDS,
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 4,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "use_cache": False,
        },
        make_padded_tokens,
        (CHECKPOINTING, HALVES, *EVERY),
        _BLOOM_FAULTS,
        has_attention=False,
    ),
)
