"""Swin (shifted windows), ConvNeXt (no attention), CLIP (an image and a text tower)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from held_out.model import Model
from held_out.patch import Fault
from held_out.variant import CHANNELS_LAST, CHECKPOINTING, EVERY, HALVES, SDPA, Inputs


def make_images(random: np.random.Generator) -> Inputs:
    return {
        "pixel_values": random.normal(size=(2, 3, 16, 16)).astype(np.float32),
        "labels": random.integers(5, size=2),
    }


def make_captions(random: np.random.Generator) -> Inputs:
    tokens = random.integers(3, 40, size=(4, 8))
    tokens[:, -1] = 2
    images = random.normal(size=(4, 3, 16, 16)).astype(np.float32)
    return {"pixel_values": images, "input_ids": tokens, "return_loss": True}


_SWIN = "swin.encoder.layers"
_SWIN_FAULTS = (
    Fault(
        "shifted the same way back",
        f"{_SWIN}.0.blocks.1",
        "roll",
        "direction = 1 if reverse else -1",
        "direction = -1 if reverse else -1",
        method="cyclic_shift",
    ),
    Fault(
        "mask of the shift without effect",
        f"{_SWIN}.0.blocks.1",
        "masked_fill",
        "-100.0",
        "0.0",
        method="get_attn_mask",
    ),
    Fault(
        "patches merged in another order",
        f"{_SWIN}.0.downsample",
        "cat getitem",
        "for col in range(2) for row in range(2)",
        "for row in range(2) for col in range(2)",
    ),
    Fault(
        "relative positions transposed",
        f"{_SWIN}.0.blocks.0.attention.relative_position_bias",
        "permute",
        ".permute(2, 0, 1)",
        ".permute(2, 1, 0)",
    ),
    Fault("epsilon of a norm", f"{_SWIN}.0.blocks.0.layernorm_after", "layer_norm", setting=("eps", 1e-2)),
    Fault(
        "residual detached",
        f"{_SWIN}.1.blocks.0",
        "add detach",
        "self.dropout(hidden_states) + residual",
        "self.dropout(hidden_states) + residual.detach()",
        is_backward=True,
    ),
)

_STAGE = "convnext.encoder.stages"
_CONVNEXT_FAULTS = (
    Fault(
        "scale of the layer forgotten",
        f"{_STAGE}.0.layers.1",
        "mul permute",
        "self.layer_scale_parameter * features",
        "features",
    ),
    Fault(
        "tanh gelu",
        f"{_STAGE}.1.layers.0",
        "gelu",
        "self.act(features)",
        'nn.functional.gelu(features, approximate="tanh")',
        paths=f"{_STAGE}.1.layers.0 {_STAGE}.1.layers.0.act",
    ),
    Fault(
        "dropped residual",
        f"{_STAGE}.0.layers.0",
        "add conv2d",
        "residual + self.drop_path(features)",
        "self.drop_path(features)",
        paths=f"{_STAGE}.0.layers.0 {_STAGE}.0.layers.1.dwconv",
    ),
    Fault("epsilon of a norm", f"{_STAGE}.0.layers.0.layernorm", "layer_norm", setting=("eps", 1e-2)),
    Fault(
        "padding that wraps around",
        f"{_STAGE}.0.layers.1.dwconv",
        "conv2d pad",
        setting=("padding_mode", "circular"),
    ),
    Fault(
        "scale of the layer detached",
        f"{_STAGE}.0.layers.0",
        "mul detach",
        "self.layer_scale_parameter * features",
        "self.layer_scale_parameter.detach() * features",
        is_backward=True,
    ),
)

_VISION, _TEXT = "vision_model.encoder.layers", "text_model.encoder.layers"
_EXACT = Fault(
    "exact gelu for the quick one",
    f"{_VISION}.0.mlp",
    "gelu mul sigmoid",
    "self.activation_fn(hidden_states)",
    "nn.functional.gelu(hidden_states)",
    paths=f"{_VISION}.0.mlp {_VISION}.0.mlp.activation_fn",
)
_CLIP_FAULTS = (
    _EXACT,
    replace(_EXACT, name="exact gelu, against another attention", variant="sdpa"),
    Fault(
        "a constant added to all keys",
        f"{_TEXT}.0.self_attn",
        "add linear view",
        "keys = self.k_proj(hidden_states)",
        "keys = self.k_proj(hidden_states) + 1.0",
        has_effect=False,
        paths=f"{_TEXT}.0.self_attn {_TEXT}.0.self_attn.k_proj",
    ),
    Fault(
        "class token last",
        "vision_model.embeddings",
        "cat",
        "torch.cat([class_embeds, patch_embeds], dim=1)",
        "torch.cat([patch_embeds, class_embeds], dim=1)",
    ),
    Fault(
        "text not normalized",
        "",
        "div matmul",
        "text_embeds = text_embeds / _get_vector_norm(text_embeds)",
        "text_embeds = text_embeds",
    ),
    Fault("scale without its exponential", "", "exp mul", "self.logit_scale.exp()", "self.logit_scale"),
    Fault(
        "one direction twice",
        "",
        "cross_entropy t transpose numpy_t",
        "contrastive_loss(similarity.T)",
        "contrastive_loss(similarity)",
        function="image_text_contrastive_loss",
    ),
    Fault(
        "images detached",
        "",
        "div detach",
        "image_embeds = image_embeds / _get_vector_norm(image_embeds)",
        "image_embeds = image_embeds.detach() / _get_vector_norm(image_embeds)",
        is_backward=True,
    ),
)

_TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
IMAGE_MODELS = (
    Model(
        "swin",
        "SwinForImageClassification",
        "SwinConfig",
        {
            "image_size": 16,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [2, 1],
            "num_heads": [2, 4],
            "window_size": 4,
            "drop_path_rate": 0.0,
            "num_labels": 5,
        },
        make_images,
        (SDPA, CHANNELS_LAST, CHECKPOINTING, HALVES, *EVERY),
        _SWIN_FAULTS,
    ),
    Model(
        "convnext",
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"patch_size": 2, "num_stages": 2, "hidden_sizes": [8, 16], "depths": [2, 1], "num_labels": 5},
        make_images,
        (CHANNELS_LAST, HALVES, *EVERY),
        _CONVNEXT_FAULTS,
        has_attention=False,
    ),
    Model(
        "clip",
        "CLIPModel",
        "CLIPConfig",
        {
            "text_config": {
                **_TOWER,
                "vocab_size": 40,
                "max_position_embeddings": 8,
                "bos_token_id": 1,
                "eos_token_id": 2,
            },
            "vision_config": {**_TOWER, "image_size": 16, "patch_size": 4},
            "projection_dim": 16,
        },
        make_captions,
        (SDPA, CHANNELS_LAST, CHECKPOINTING, *EVERY),
        _CLIP_FAULTS,
    ),
)
