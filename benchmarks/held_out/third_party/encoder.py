"""ModernBERT (windows, tokens to label), LongT5 (blocks and global tokens), Moonshine (sound to text)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from held_out.model import Model
from held_out.patch import Fault
from held_out.third_party.language import WORDS
from held_out.variant import CHECKPOINTING, EVERY, HALVES, SDPA, Inputs

TAGS = 5


def make_tagged_words(random: np.random.Generator) -> Inputs:
    mask = np.ones((2, 12), np.int64)
    mask[:, -2:] = 0
    tags = np.where(mask == 1, random.integers(TAGS, size=mask.shape), -100)
    return {"input_ids": random.integers(3, WORDS, size=mask.shape), "attention_mask": mask, "labels": tags}


def make_long_translation(random: np.random.Generator) -> Inputs:
    mask = np.ones((2, 15), np.int64)
    mask[0, -2:] = 0
    words = random.integers(3, WORDS, size=mask.shape)
    return {"input_ids": words, "attention_mask": mask, "labels": random.integers(3, WORDS, size=(2, 6))}


def make_speech(random: np.random.Generator) -> Inputs:
    sound = random.normal(size=(2, 3072)).astype(np.float32)
    return {"input_values": sound, "labels": random.integers(3, WORDS, size=(2, 6))}


_LAYER = "model.layers"
_GATE = Fault(
    "activation on the gate",
    f"{_LAYER}.2.mlp",
    "gelu mul",
    "self.act(input) * gate",
    "input * self.act(gate)",
    paths=f"{_LAYER}.2.mlp {_LAYER}.2.mlp.act",
)
_TURNS = Fault(
    "frequencies of the local layers for the global ones",
    "model.rotary_emb",
    "mul to",
    setting=("full_attention_inv_freq", torch.tensor([1.0, 0.1, 0.01, 0.001])),
)
_MODERNBERT_FAULTS = (
    _GATE,
    _TURNS,
    replace(_TURNS, name="two at once: frequencies and activation", second=_GATE),
    Fault(
        "window forgotten",
        "model",
        "add",
        "attention_mask=attention_mask_mapping[encoder_layer.attention_type]",
        'attention_mask=attention_mask_mapping["full_attention"]',
        paths=f"model {_LAYER}.1.attn",
    ),
    Fault(
        "window forgotten, against another attention",
        "model",
        "scaled_dot_product_attention",
        "attention_mask=attention_mask_mapping[encoder_layer.attention_type]",
        'attention_mask=attention_mask_mapping["full_attention"]',
        paths=f"model {_LAYER}.1.attn",
        variant="sdpa",
    ),
    Fault(
        "keys and queries exchanged",
        f"{_LAYER}.0.attn",
        "unbind transpose float mul to",
        "query_states, key_states, value_states = qkv.unbind",
        "key_states, query_states, value_states = qkv.unbind",
    ),
    Fault(
        "softmax in float64",
        f"{_LAYER}.0.attn",
        "softmax to",
        "dtype=torch.float32).to(query.dtype)",
        "dtype=torch.float64).to(query.dtype)",
        function="eager_attention_forward",
        has_effect=False,
    ),
    Fault(
        "turned half of the keys detached",
        f"{_LAYER}.0.attn",
        "detach cat mul",
        "rotate_half(k.float()) * sin",
        "rotate_half(k.float()).detach() * sin",
        function="apply_rotary_pos_emb",
        is_backward=True,
    ),
    Fault(
        "epsilon only in the third step",
        f"{_LAYER}.1.mlp_norm",
        "layer_norm",
        setting=("eps", 1e-1),
        steps=3,
        first_step=2,
    ),
)

_GLOBAL = "encoder.block.0.layer.0.TransientGlobalSelfAttention"
_WIDE = Fault(
    "a token too far",
    _GLOBAL,
    "lt less le less_equal getitem to logical_and",
    "torch.abs(relative_position_ids) < block_len",
    "torch.abs(relative_position_ids) <= block_len",
    function="_mask_local_attention_mask",
)
_DENSE = "decoder.block.0.layer.2.DenseReluDense"
_RELU = Fault(
    "relu for gelu",
    _DENSE,
    "relu gelu mul pow add tanh",
    "self.act(self.wi_0(hidden_states))",
    "nn.functional.relu(self.wi_0(hidden_states))",
    paths=f"{_DENSE} {_DENSE}.act",
)
_LONGT5_FAULTS = (
    _WIDE,
    _RELU,
    replace(_WIDE, name="two at once: a token too far and relu", second=_RELU),
    Fault(
        "keys of the global tokens for their values",
        _GLOBAL,
        "linear view",
        "side_value_states = shape(self.v(global_inputs))",
        "side_value_states = shape(self.k(global_inputs))",
        paths=f"{_GLOBAL} {_GLOBAL}.k {_GLOBAL}.v",
    ),
    Fault(
        "softmax in bfloat16",
        _GLOBAL,
        "float bfloat16 softmax",
        "nn.functional.softmax(scores.float(), dim=-1)",
        "nn.functional.softmax(scores.bfloat16(), dim=-1)",
    ),
    Fault(
        "positions counted one way",
        _GLOBAL,
        "gt to mul abs min neg lt where add embedding zeros_like",
        "bidirectional=(not self.is_decoder)",
        "bidirectional=False",
        method="compute_bias",
        paths=f"{_GLOBAL} {_GLOBAL}.relative_attention_bias",
    ),
    Fault(
        "dropped residual",
        "decoder.block.0.layer.1",
        "add to pow mul",
        "layer_output = hidden_states + self.dropout(attention_output)",
        "layer_output = self.dropout(attention_output)",
        paths="decoder.block.0.layer.1 decoder.block.0.layer.2 decoder.block.0.layer.2.layer_norm",
    ),
    Fault(
        "global tokens detached",
        _GLOBAL,
        "detach einsum to pow mul",
        "self.global_input_layer_norm(global_inputs)",
        "self.global_input_layer_norm(global_inputs.detach())",
        paths=f"{_GLOBAL} {_GLOBAL}.global_input_layer_norm",
        is_backward=True,
    ),
    Fault(
        "epsilon only in the third step",
        "encoder.final_layer_norm",
        "add rsqrt",
        setting=("variance_epsilon", 1e-1),
        steps=3,
        first_step=2,
    ),
)

_HEARD, _SAID = "model.encoder.layers", "model.decoder.layers"
_MOONSHINE_FAULTS = (
    Fault("epsilon of the group norm", "model.encoder.groupnorm", "group_norm", setting=("eps", 1e-1)),
    Fault(
        "relu for gelu",
        "model.encoder",
        "relu gelu",
        "nn.functional.gelu(self.conv2(hidden_states))",
        "nn.functional.relu(self.conv2(hidden_states))",
    ),
    Fault(
        "turned by halves",
        f"{_HEARD}.0.self_attn",
        "getitem repeat_interleave mul",
        "cos = cos[..., : cos.shape[-1] // 2].repeat_interleave(2, dim=-1)",
        "cos = cos",
        function="apply_rotary_pos_emb",
    ),
    Fault(
        "gates of the other half",
        f"{_SAID}.0.mlp",
        "chunk silu mul",
        "hidden_states, gate = hidden_states.chunk(2, dim=-1)",
        "gate, hidden_states = hidden_states.chunk(2, dim=-1)",
        paths=f"{_SAID}.0.mlp {_SAID}.0.mlp.activation_fn",
    ),
    Fault(
        "scale of the scores, against another attention",
        f"{_SAID}.0.encoder_attn",
        "mul scaled_dot_product_attention",
        setting=("scaling", 0.125),
        variant="sdpa",
    ),
    Fault(
        "a constant added to all keys",
        f"{_SAID}.1.encoder_attn",
        "add linear view",
        "self.k_proj(current_states)",
        "(self.k_proj(current_states) + 1.0)",
        has_effect=False,
        paths=f"{_SAID}.1.encoder_attn {_SAID}.1.encoder_attn.k_proj",
    ),
    Fault(
        "encoder detached",
        f"{_SAID}.1",
        "linear detach",
        "key_value_states=encoder_hidden_states,",
        "key_value_states=encoder_hidden_states.detach(),",
        paths=f"{_SAID}.1 {_SAID}.1.encoder_attn.k_proj {_SAID}.1.encoder_attn.v_proj",
        is_backward=True,
    ),
    Fault(
        "epsilon only in the third step",
        f"{_SAID}.1.final_layernorm",
        "layer_norm",
        setting=("eps", 1e-1),
        steps=3,
        first_step=2,
    ),
)

_MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
ENCODER_MODELS = (
    Model(
        "modernbert",
        "ModernBertForTokenClassification",
        "ModernBertConfig",
        {
            **_MARKS,
            "vocab_size": WORDS,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "local_attention": 4,
            "num_labels": TAGS,
        },
        make_tagged_words,
        (SDPA, CHECKPOINTING, HALVES, *EVERY),
        _MODERNBERT_FAULTS,
    ),
    Model(
        "longt5",
        "LongT5ForConditionalGeneration",
        "LongT5Config",
        {
            "vocab_size": WORDS,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "local_radius": 3,
            "global_block_size": 4,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 16,
            "dropout_rate": 0.0,
            "feed_forward_proj": "gated-gelu",
            "encoder_attention_type": "transient-global",
            "decoder_start_token_id": 0,
            "use_cache": False,
        },
        make_long_translation,
        (CHECKPOINTING, HALVES, *EVERY),
        _LONGT5_FAULTS,
    ),
    Model(
        "moonshine",
        "MoonshineForConditionalGeneration",
        "MoonshineConfig",
        {
            **_MARKS,
            "vocab_size": WORDS,
            "hidden_size": 32,
            "intermediate_size": 48,
            "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 4,
            "decoder_num_attention_heads": 4,
            "use_cache": False,
        },
        make_speech,
        (SDPA, CHECKPOINTING, HALVES, *EVERY),
        _MOONSHINE_FAULTS,
    ),
)
