"""Mixtures of experts: OLMoE, DeepSeek-V3 (latent attention, groups, a shared expert), gpt-oss (sinks)."""

from __future__ import annotations

from dataclasses import replace

import torch

from held_out.model import Model
from held_out.patch import Fault
from held_out.third_party.language import WORDS, make_tokens
from held_out.variant import BATCHED, CHECKPOINTING, EVERY, GROUPED, HALVES, SDPA

_MLP = "model.layers.0.mlp"
_NORMALIZATION = Fault(
    "normalization of the router forgotten",
    f"{_MLP}.gate",
    "sum div to getitem mul reshape",
    setting=("norm_topk_prob", False),
    paths=f"{_MLP}.gate {_MLP}.experts",
)
_SOFTMAX = Fault(
    "softmax of the router in bfloat16",
    "model.layers.1.mlp.gate",
    "softmax topk to",
    "dtype=torch.float, dim=-1",
    "dtype=torch.bfloat16, dim=-1",
)
_OLMOE_FAULTS = (
    _NORMALIZATION,
    replace(_NORMALIZATION, name="normalization forgotten, against grouped experts", variant="grouped experts"),
    replace(_NORMALIZATION, name="two at once: normalization and softmax", second=_SOFTMAX),
    _SOFTMAX,
    Fault(
        "gates of the other half",
        f"{_MLP}.experts",
        "silu mul",
        "self.act_fn(gate) * up",
        "gate * self.act_fn(up)",
        paths=f"{_MLP}.experts {_MLP}.experts.act_fn",
    ),
    Fault(
        "weight of the first expert for each",
        f"{_MLP}.experts",
        "getitem mul",
        "top_k_weights[token_idx, top_k_pos, None]",
        "top_k_weights[token_idx, 0, None]",
    ),
    Fault("share of the balance", "", "mul add", setting=("router_aux_loss_coef", 0.1)),
    Fault(
        "router detached",
        "model.layers.1.mlp",
        "detach getitem mul to div",
        "self.experts(hidden_states, top_k_index, top_k_weights)",
        "self.experts(hidden_states, top_k_index, top_k_weights.detach())",
        paths="model.layers.1.mlp model.layers.1.mlp.experts model.layers.1.mlp.gate",
        is_backward=True,
    ),
)

_LATENT = "model.layers.0.self_attn"
_SPARSE = "model.layers.1.mlp"
_SCALING = Fault(
    "scale of the scores without the turned part",
    _LATENT,
    "mul scaled_dot_product_attention",
    setting=("scaling", 8**-0.5),
)
_SHARED = Fault(
    "shared expert after the others",
    _SPARSE,
    "linear add",
    "self.shared_experts(residuals)",
    "self.shared_experts(hidden_states)",
    paths=f"{_SPARSE} {_SPARSE}.shared_experts {_SPARSE}.shared_experts.gate_proj {_SPARSE}.shared_experts.up_proj",
)
_DEEPSEEK_FAULTS = (
    replace(_SCALING, name="scale of the scores, against another attention", variant="sdpa"),
    replace(_SCALING, name="two at once: scale and shared expert", second=_SHARED),
    _SHARED,
    Fault(
        "norm of the latent forgotten",
        _LATENT,
        "to pow mean add rsqrt mul view linear",
        "kv_nope = self.kv_a_layernorm(kv_nope)",
        "kv_nope = kv_nope",
        paths=f"{_LATENT} {_LATENT}.kv_a_layernorm {_LATENT}.kv_b_proj",
    ),
    Fault(
        "keys turned the other way",
        _LATENT,
        "add sub mul cat",
        "[k1 * cos - k2 * sin, k2 * cos + k1 * sin]",
        "[k1 * cos + k2 * sin, k2 * cos - k1 * sin]",
        function="apply_rotary_pos_emb_interleave",
    ),
    Fault(
        "correction of another load",
        f"{_SPARSE}.gate",
        "add view topk masked_fill",
        setting=("e_score_correction_bias", torch.tensor([0.2, 0.0, -0.2, 0.0, 0.2, 0.0, -0.2, 0.0])),
    ),
    Fault(
        "groups forgotten",
        f"{_SPARSE}.gate",
        "topk scatter expand masked_fill",
        setting=("topk_group", 4),
        variant="grouped experts",
    ),
    Fault(
        "weights from the corrected scores",
        f"{_SPARSE}.gate",
        "gather",
        "topk_weights = scores.gather(1, topk_indices)",
        "topk_weights = scores_for_choice.gather(1, topk_indices)",
        has_effect=False,  # no load was corrected yet
    ),
    Fault(
        "turned part of the keys detached",
        _LATENT,
        "detach expand copy cat",
        "k_rot = k_rot.expand(",
        "k_rot = k_rot.detach().expand(",
        method="expand_kv",
        is_backward=True,
    ),
    Fault(
        "factor of the experts only in the third step",
        f"{_SPARSE}.gate",
        "mul",
        setting=("routed_scaling_factor", 1.0),
        steps=3,
        first_step=2,
    ),
)

_EXPERTS = f"{_MLP}.experts"
_SINK = "model.layers.0.self_attn"
_ALPHA = Fault("slope of the gates", _EXPERTS, "mul sigmoid", setting=("alpha", 1.0))
_GPT_OSS_FAULTS = (
    replace(_ALPHA, name="slope of the gates, against batched experts", variant="batched experts"),
    replace(_ALPHA, name="slope of the gates only in the third step", steps=3, first_step=2),
    Fault(
        "gates in halves",
        _EXPERTS,
        "getitem chunk clamp",
        "gate_up[..., ::2], gate_up[..., 1::2]",
        "gate_up.chunk(2, dim=-1)",
        method="_apply_gate",
    ),
    Fault(
        "gates clamped from below",
        _EXPERTS,
        "clamp",
        "gate.clamp(min=None, max=self.limit)",
        "gate.clamp(min=-self.limit, max=self.limit)",
        method="_apply_gate",
        variant="grouped experts",
    ),
    Fault(
        "softmax of the router along the tokens",
        f"{_MLP}.router",
        "softmax",
        "dim=1, dtype=router_top_value.dtype",
        "dim=0, dtype=router_top_value.dtype",
    ),
    Fault(
        "without the sinks",
        _SINK,
        "softmax getitem cat",
        "probs = F.softmax(combined_logits, dim=-1, dtype=combined_logits.dtype)\n    scores = probs[..., :-1]",
        "probs = F.softmax(combined_logits[..., :-1], dim=-1, dtype=combined_logits.dtype)\n    scores = probs",
        function="eager_attention_forward",
    ),
    Fault(
        "window of the first layer forgotten",
        "model",
        "add",
        "causal_mask_mapping[self.config.layer_types[i]]",
        'causal_mask_mapping["full_attention"]',
        paths=f"{_SINK} model",
    ),
    Fault(
        "largest score not subtracted",
        _SINK,
        "sub max softmax",
        "combined_logits = combined_logits - combined_logits.max(dim=-1, keepdim=True).values",
        "combined_logits = combined_logits",
        function="eager_attention_forward",
        has_effect=False,
    ),
    Fault(
        "sinks detached",
        _SINK,
        "detach reshape expand cat",
        "sinks = module.sinks.reshape",
        "sinks = module.sinks.detach().reshape",
        function="eager_attention_forward",
        is_backward=True,
    ),
)

_SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERT_MODELS = (
    Model(
        "olmoe",
        "OlmoeForCausalLM",
        "OlmoeConfig",
        {
            **_SMALL,
            "intermediate_size": 24,
            "num_key_value_heads": 2,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
            "output_router_logits": True,
        },
        make_tokens,
        (SDPA, GROUPED, BATCHED, CHECKPOINTING, *EVERY),
        _OLMOE_FAULTS,
        has_experts=True,
    ),
    Model(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        {
            **_SMALL,
            "num_key_value_heads": 4,
            "intermediate_size": 48,
            "moe_intermediate_size": 24,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
            "num_mtp_layers": 0,
        },
        make_tokens,
        (SDPA, GROUPED, BATCHED, CHECKPOINTING, HALVES, *EVERY),
        _DEEPSEEK_FAULTS,
        has_experts=True,
    ),
    Model(
        "gpt_oss",
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            **_SMALL,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "intermediate_size": 24,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "swiglu_limit": 0.5,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        make_tokens,
        (GROUPED, BATCHED, CHECKPOINTING, HALVES, *EVERY),
        _GPT_OSS_FAULTS,
        has_experts=True,
    ),
)
