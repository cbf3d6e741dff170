"""Models of diffusers that predict noise: a U-Net with cross attention, and a transformer (PixArt)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from held_out.model import Model
from held_out.patch import Fault
from held_out.variant import CHANNELS_LAST, CHECKPOINTING, EVERY, HALVES, SDPA, Inputs


def measure_error(network: nn.Module, inputs: Inputs) -> torch.Tensor:
    """The mean square error to the noise that was added."""
    given = {name: value for name, value in inputs.items() if name != "noise"}
    return nn.functional.mse_loss(network(**given).sample, inputs["noise"])


def make_noisy_images(random: np.random.Generator) -> Inputs:
    return {
        "sample": random.normal(size=(2, 4, 8, 8)).astype(np.float32),
        "timestep": random.integers(1, 1000, size=2),
        "encoder_hidden_states": random.normal(size=(2, 5, 16)).astype(np.float32),
        "noise": random.normal(size=(2, 4, 8, 8)).astype(np.float32),
    }


def make_captioned_noise(random: np.random.Generator) -> Inputs:
    inputs = make_noisy_images(random)
    mask = np.ones((2, 5), np.int64)
    mask[:, -2:] = 0
    return {"hidden_states": inputs.pop("sample"), "encoder_attention_mask": mask, **inputs}


_RESNET = "down_blocks.0.resnets.0"
_CROSS = "down_blocks.0.attentions.0.transformer_blocks.0"
_GATES = Fault(
    "gates of the other half",
    f"{_CROSS}.ff.net.0",
    "chunk gelu mul",
    "hidden_states, gate = hidden_states.chunk(2, dim=-1)",
    "gate, hidden_states = hidden_states.chunk(2, dim=-1)",
)
_TIME = Fault(
    "time forgotten",
    _RESNET,
    "add group_norm",
    "hidden_states = hidden_states + temb",
    "hidden_states = hidden_states",
    paths=f"{_RESNET} {_RESNET}.norm2",
)
_UNET_FAULTS = (
    _TIME,
    replace(_TIME, name="two at once: time and gates", second=_GATES),
    replace(_GATES, name="gates of the other half, against another attention", variant="sdpa"),
    Fault("fewer groups", "mid_block.resnets.0.norm2", "group_norm", setting=("num_groups", 4)),
    Fault(
        "sine and cosine exchanged",
        "time_proj",
        "cat getitem linear",
        setting=("flip_sin_to_cos", False),
        paths="time_proj time_embedding.linear_1",
    ),
    Fault(
        "cross attention to itself",
        _CROSS,
        "linear",
        "encoder_hidden_states=encoder_hidden_states,\n                attention_mask=encoder_attention_mask,",
        "encoder_hidden_states=None,\n                attention_mask=encoder_attention_mask,",
        paths=f"{_CROSS} {_CROSS}.attn2 {_CROSS}.attn2.to_k {_CROSS}.attn2.to_v",
    ),
    Fault(
        "skip connection first",
        "up_blocks.0",
        "cat",
        "torch.cat([hidden_states, res_hidden_states], dim=1)",
        "torch.cat([res_hidden_states, hidden_states], dim=1)",
    ),
    Fault(
        "bilinear upsampling",
        "up_blocks.0.upsamplers.0",
        "interpolate",
        'F.interpolate(hidden_states, scale_factor=2.0, mode="nearest")',
        'F.interpolate(hidden_states, scale_factor=2.0, mode="bilinear")',
    ),
    Fault(
        "largest score subtracted",
        f"{_CROSS}.attn1",
        "sub amax softmax",
        "attention_scores.softmax(dim=-1)",
        "(attention_scores - attention_scores.amax(dim=-1, keepdim=True)).softmax(dim=-1)",
        method="get_attention_scores",
        has_effect=False,
    ),
    Fault(
        "time detached",
        "up_blocks.1.resnets.0",
        "detach linear silu",
        "temb = self.time_emb_proj(temb)[:, :, None, None]",
        "temb = self.time_emb_proj(temb.detach())[:, :, None, None]",
        paths="up_blocks.1.resnets.0 up_blocks.1.resnets.0.time_emb_proj up_blocks.1.resnets.0.nonlinearity",
        is_backward=True,
    ),
    Fault(
        "scale of the output only in the third step",
        "mid_block.resnets.1",
        "div",
        setting=("output_scale_factor", 2**0.5),
        steps=3,
        first_step=2,
    ),
)

_BLOCK = "transformer_blocks.0"
_MASK = Fault(
    "mask of the captions forgotten",
    _BLOCK,
    "repeat_interleave view baddbmm empty scaled_dot_product_attention",
    "attention_mask=encoder_attention_mask,",
    "attention_mask=None,",
    paths=f"{_BLOCK} {_BLOCK}.attn2",
)
_GELU = Fault("exact gelu", "transformer_blocks.1.ff.net.0", "gelu", setting=("approximate", "none"))
_PIXART_FAULTS = (
    _MASK,
    replace(_MASK, name="mask of the captions forgotten, against another attention", variant="sdpa"),
    _GELU,
    replace(_MASK, name="two at once: mask and gelu", second=_GELU),
    Fault(
        "gate forgotten",
        _BLOCK,
        "mul add",
        "attn_output = gate_msa * attn_output",
        "attn_output = attn_output",
    ),
    Fault(
        "shift and scale exchanged",
        _BLOCK,
        "chunk add mul",
        "shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = (",
        "scale_msa, shift_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = (",
    ),
    Fault(
        "scale without its one",
        "",
        "add mul",
        "hidden_states * (1 + scale.to(hidden_states.device)) + shift",
        "hidden_states * scale.to(hidden_states.device) + shift",
    ),
    Fault("patches transposed", "", "einsum", '"nhwpqc->nchpwq"', '"nhwpqc->nchqwp"'),
    Fault(
        "time detached",
        "transformer_blocks.1",
        "detach reshape add",
        "timestep.reshape(batch_size, 6, -1)",
        "timestep.detach().reshape(batch_size, 6, -1)",
        is_backward=True,
    ),
    Fault(
        "epsilon only in the third step",
        f"{_BLOCK}.norm1",
        "layer_norm",
        setting=("eps", 1e-1),
        steps=3,
        first_step=2,
    ),
)

DIFFUSION_MODELS = (
    Model(
        "unet",
        "UNet2DConditionModel",
        "",
        {
            "sample_size": 8,
            "in_channels": 4,
            "out_channels": 4,
            "block_out_channels": (16, 32),
            "layers_per_block": 1,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
            "cross_attention_dim": 16,
            "attention_head_dim": 4,
            "norm_num_groups": 8,
        },
        make_noisy_images,
        (SDPA, CHANNELS_LAST, CHECKPOINTING, HALVES, *EVERY),
        _UNET_FAULTS,
        library="diffusers",
        compute_loss=measure_error,
    ),
    Model(
        "pixart",
        "PixArtTransformer2DModel",
        "",
        {
            "sample_size": 8,
            "num_attention_heads": 4,
            "attention_head_dim": 8,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 2,
            "norm_num_groups": 8,
            "cross_attention_dim": 32,
            "caption_channels": 16,
        },
        make_captioned_noise,
        (SDPA, CHECKPOINTING, HALVES, *EVERY),
        _PIXART_FAULTS,
        library="diffusers",
        compute_loss=measure_error,
    ),
)
