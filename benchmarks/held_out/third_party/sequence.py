"""BART (encoder and decoder), DeBERTa (content and position apart), wav2vec 2.0 (sound, CTC)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from held_out.model import Model
from held_out.patch import Fault
from held_out.third_party.language import WORDS
from held_out.variant import CHECKPOINTING, EVERY, HALVES, SDPA, Inputs

_ENCODER, _DECODER = "model.encoder.layers", "model.decoder.layers"


def make_translation(random: np.random.Generator) -> Inputs:
    return {"input_ids": random.integers(3, WORDS, size=(2, 9)), "labels": random.integers(3, WORDS, size=(2, 7))}


def make_sound(random: np.random.Generator) -> Inputs:
    sound = random.normal(size=(2, 320)).astype(np.float32)
    return {"input_values": sound, "labels": random.integers(1, 20, size=(2, 6))}


def make_words(random: np.random.Generator) -> Inputs:
    return {"input_ids": random.integers(3, WORDS, size=(2, 9)), "labels": random.integers(3, WORDS, size=(2, 9))}


_SCALE = Fault("scale of the embedding", "model.encoder.embed_tokens", "mul", setting=("embed_scale", 1.0))
_RELU = Fault(
    "relu for gelu",
    f"{_ENCODER}.1",
    "gelu relu",
    "self.activation_fn(self.fc1(hidden_states))",
    "nn.functional.relu(self.fc1(hidden_states))",
    paths=f"{_ENCODER}.1 {_ENCODER}.1.activation_fn",
)
_BART_FAULTS = (
    _SCALE,
    _RELU,
    replace(_SCALE, name="two at once: scale and activation", second=_RELU),
    Fault(
        "dropped residual",
        f"{_ENCODER}.0",
        "add layer_norm",
        "hidden_states = residual + hidden_states\n        hidden_states = self.self_attn_layer_norm(hidden_states)",
        "hidden_states = hidden_states\n        hidden_states = self.self_attn_layer_norm(hidden_states)",
        paths=f"{_ENCODER}.0 {_ENCODER}.0.self_attn_layer_norm",
    ),
    Fault(
        "causal mask lost",
        f"{_DECODER}.0",
        "add softmax matmul",
        "past_key_values=past_key_values,\n            attention_mask=attention_mask,",
        "past_key_values=past_key_values,\n            attention_mask=None,",
        paths=f"{_DECODER}.0.self_attn",
    ),
    Fault(
        "cross attention to itself",
        f"{_DECODER}.1",
        "linear",
        "key_value_states=encoder_hidden_states",
        "key_value_states=hidden_states",
        paths=f"{_DECODER}.1.encoder_attn {_DECODER}.1.encoder_attn.k_proj",
    ),
    Fault(
        "encoder detached",
        f"{_DECODER}.0",
        "linear detach",
        "key_value_states=encoder_hidden_states",
        "key_value_states=encoder_hidden_states.detach()",
        paths=f"{_DECODER}.0 {_DECODER}.0.encoder_attn.k_proj {_DECODER}.0.encoder_attn.v_proj",
        is_backward=True,
    ),
    Fault(
        "epsilon only in the third step",
        f"{_DECODER}.1.final_layer_norm",
        "layer_norm",
        setting=("eps", 1e-2),
        steps=3,
        first_step=2,
    ),
)

_SELF = "deberta.encoder.layer.0.attention.self"
_LAYER = "deberta.encoder.layer"
_DEBERTA_FAULTS = (
    Fault(
        "scale of content to position",
        _SELF,
        "div add",
        "score += c2p_att / scale.to(dtype=c2p_att.dtype)",
        "score += c2p_att",
        method="disentangled_attention_bias",
    ),
    Fault(
        "positions of the wrong sign",
        _SELF,
        "neg add clamp gather",
        "torch.clamp(-r_pos + att_span",
        "torch.clamp(r_pos + att_span",
        method="disentangled_attention_bias",
    ),
    Fault(
        "position to content not transposed",
        _SELF,
        "transpose div add",
        ").transpose(-1, -2)\n            score += p2c_att",
        ")\n            score += p2c_att",
        method="disentangled_attention_bias",
    ),
    Fault(
        "tanh gelu",
        f"{_LAYER}.0.intermediate",
        "gelu",
        "self.intermediate_act_fn(hidden_states)",
        'nn.functional.gelu(hidden_states, approximate="tanh")',
        paths=f"{_LAYER}.0.intermediate {_LAYER}.0.intermediate.intermediate_act_fn",
    ),
    Fault("epsilon of a norm", f"{_LAYER}.1.attention.output.LayerNorm", "layer_norm", setting=("eps", 1e-3)),
    Fault(
        "dropped residual",
        f"{_LAYER}.0.output",
        "add layer_norm",
        "self.LayerNorm(hidden_states + input_tensor)",
        "self.LayerNorm(hidden_states)",
        paths=f"{_LAYER}.0.output {_LAYER}.0.output.LayerNorm",
    ),
    Fault(
        "positions detached",
        _SELF,
        "unsqueeze getitem detach linear",
        "rel_embeddings[0 : att_span * 2, :].unsqueeze(0)",
        "rel_embeddings[0 : att_span * 2, :].unsqueeze(0).detach()",
        method="disentangled_attention_bias",
        paths=f"{_SELF} {_SELF}.query_proj {_SELF}.key_proj",
        is_backward=True,
    ),
)

_SOUND = "wav2vec2.encoder.layers"
_WAV2VEC2_FAULTS = (
    Fault(
        "epsilon of the group norm",
        "wav2vec2.feature_extractor.conv_layers.0.layer_norm",
        "group_norm",
        setting=("eps", 1e-1),
    ),
    Fault(
        "cropped at the wrong end",
        "wav2vec2.encoder.pos_conv_embed.padding",
        "getitem",
        "[:, :, : -self.num_pad_remove]",
        "[:, :, self.num_pad_remove :]",
    ),
    Fault("missing scale", f"{_SOUND}.0.attention", "mul", setting=("scaling", 1.0)),
    Fault(
        "dropped residual",
        f"{_SOUND}.1",
        "add layer_norm",
        "hidden_states + self.feed_forward(hidden_states)",
        "self.feed_forward(hidden_states)",
        paths=f"{_SOUND}.1 {_SOUND}.1.final_layer_norm",
    ),
    Fault(
        "tanh gelu",
        f"{_SOUND}.0.feed_forward",
        "gelu",
        "self.intermediate_act_fn(hidden_states)",
        'nn.functional.gelu(hidden_states, approximate="tanh")',
        paths=f"{_SOUND}.0.feed_forward {_SOUND}.0.feed_forward.intermediate_act_fn",
    ),
    Fault(
        "features detached",
        "wav2vec2.feature_projection",
        "linear layer_norm detach",
        "self.projection(norm_hidden_states)",
        "self.projection(norm_hidden_states.detach())",
        paths="wav2vec2.feature_projection wav2vec2.feature_projection.projection "
        "wav2vec2.feature_projection.layer_norm",
        is_backward=True,
    ),
)

SEQUENCE_MODELS = (
    Model(
        "bart",
        "BartForConditionalGeneration",
        "BartConfig",
        {
            "vocab_size": WORDS,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 32,
            "dropout": 0.0,
            "scale_embedding": True,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
            "use_cache": False,
        },
        make_translation,
        (SDPA, CHECKPOINTING, HALVES, *EVERY),
        _BART_FAULTS,
    ),
    Model(
        "deberta_v2",
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        {
            "vocab_size": WORDS,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 32,
            "relative_attention": True,
            "max_relative_positions": 16,
            "pos_att_type": ["c2p", "p2c"],
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "type_vocab_size": 0,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        make_words,
        (CHECKPOINTING, HALVES, *EVERY),
        _DEBERTA_FAULTS,
        has_attention=False,
    ),
    Model(
        "wav2vec2",
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        {
            "vocab_size": 20,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "conv_dim": (16, 16),
            "conv_stride": (4, 2),
            "conv_kernel": (8, 3),
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 8,
            "num_conv_pos_embedding_groups": 4,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            "feat_proj_dropout": 0.0,
            "final_dropout": 0.0,
            "layerdrop": 0.0,
            "apply_spec_augment": False,
            "ctc_loss_reduction": "mean",
        },
        make_sound,
        (SDPA, CHECKPOINTING, HALVES, *EVERY),
        _WAV2VEC2_FAULTS,
    ),
)
