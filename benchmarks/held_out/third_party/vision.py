"""SegFormer (a label for each pixel), DINOv2 with registers, ViT-MAE (a random mask), RegNet (batch norms)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from held_out.model import Model
from held_out.patch import Fault
from held_out.third_party.image import make_images
from held_out.variant import CHANNELS_LAST, CHECKPOINTING, EVERY, HALVES, SDPA, Inputs

LABELS = 5


def make_scenes(random: np.random.Generator) -> Inputs:
    labels = random.integers(LABELS, size=(2, 32, 32))
    labels[:, :3] = 255  # these pixels do not count
    return {"pixel_values": random.normal(size=(2, 3, 32, 32)).astype(np.float32), "labels": labels}


def make_large_images(random: np.random.Generator) -> Inputs:
    """Larger than the positions are made for."""
    images = random.normal(size=(2, 3, 24, 24)).astype(np.float32)
    return {"pixel_values": images, "labels": random.integers(LABELS, size=2)}


def make_unlabeled_images(random: np.random.Generator) -> Inputs:
    return {"pixel_values": random.normal(size=(2, 3, 16, 16)).astype(np.float32)}


_BLOCK = "segformer.stages.0.blocks.0"
_HEAD = "decode_head"
_CORNERS = Fault(
    "corners aligned",
    _HEAD,
    "interpolate",
    'mode="bilinear", align_corners=False',
    'mode="bilinear", align_corners=True',
)
_KEYS = Fault(
    "channels and positions of the reduced keys mixed",
    f"{_BLOCK}.attention.sequence_reduction",
    "reshape transpose layer_norm",
    "hidden_states.reshape(batch_size, num_channels, -1).transpose(1, 2)",
    "hidden_states.reshape(batch_size, -1, num_channels)",
    paths=f"{_BLOCK}.attention.sequence_reduction {_BLOCK}.attention.sequence_reduction.layer_norm",
)
_SEGFORMER_FAULTS = (
    _KEYS,
    _CORNERS,
    replace(_KEYS, name="two at once: keys and corners", second=_CORNERS),
    replace(_CORNERS, name="corners aligned, against another attention", variant="sdpa"),
    Fault(
        "depthwise convolution forgotten",
        f"{_BLOCK}.mlp",
        "conv2d transpose view gelu",
        "hidden_states = self.dwconv(hidden_states, height, width)",
        "hidden_states = hidden_states",
        paths=f"{_BLOCK}.mlp {_BLOCK}.mlp.dwconv {_BLOCK}.mlp.dwconv.dwconv {_BLOCK}.mlp.activation_fn",
    ),
    Fault(
        "maps in another order",
        _HEAD,
        "cat conv2d",
        "torch.cat(all_hidden_states[::-1], dim=1)",
        "torch.cat(all_hidden_states, dim=1)",
        paths=f"{_HEAD} {_HEAD}.linear_fuse",
    ),
    Fault(
        "momentum of the batch norm", f"{_HEAD}.batch_norm", "batch_norm", setting=("momentum", 0.9), has_effect=False
    ),
    Fault(
        "residual detached",
        "segformer.stages.1.blocks.0",
        "add detach",
        "height, width)\n        hidden_states = self.drop_path(hidden_states) + residual\n\n        return",
        "height, width)\n        hidden_states = self.drop_path(hidden_states) + residual.detach()\n\n        return",
        is_backward=True,
    ),
    Fault(
        "batch norm of the past in the third step",
        f"{_HEAD}.batch_norm",
        "batch_norm add",
        setting=("training", False),
        steps=3,
        first_step=2,
    ),
)

_DINO = "dinov2_with_registers.encoder.layer"
_EMBEDDINGS = "dinov2_with_registers.embeddings"
_ANTIALIAS = Fault(
    "positions scaled without antialias", _EMBEDDINGS, "interpolate", "antialias=True", "antialias=False",
    method="interpolate_pos_encoding",
)  # fmt: skip
_DINOV2_FAULTS = (
    _ANTIALIAS,
    replace(_ANTIALIAS, name="positions scaled otherwise, against another attention", variant="sdpa"),
    Fault(
        "registers last",
        _EMBEDDINGS,
        "cat",
        "(embeddings[:, :1], self.register_tokens.expand(embeddings.shape[0], -1, -1), embeddings[:, 1:])",
        "(embeddings[:, :1], embeddings[:, 1:], self.register_tokens.expand(embeddings.shape[0], -1, -1))",
    ),
    Fault(
        "registers counted as patches",
        "",
        "getitem mean",
        "sequence_output[:, 1 + self.config.num_register_tokens :]",
        "sequence_output[:, 1:]",
    ),
    Fault(
        "scale of a branch forgotten",
        f"{_DINO}.0",
        "mul add",
        "hidden_states = self.layer_scale1(hidden_states)",
        "hidden_states = hidden_states",
        paths=f"{_DINO}.0 {_DINO}.0.layer_scale1",
    ),
    Fault(
        "activation on the other branch",
        f"{_DINO}.1.mlp",
        "silu mul",
        "self.act_fn(self.gate_proj(x)) * self.up_proj(x)",
        "self.gate_proj(x) * self.act_fn(self.up_proj(x))",
        paths=f"{_DINO}.1.mlp {_DINO}.1.mlp.act_fn",
    ),
    Fault(
        "scale of a branch detached",
        f"{_DINO}.1.layer_scale2",
        "mul detach",
        "hidden_state * self.lambda1",
        "hidden_state * self.lambda1.detach()",
        is_backward=True,
    ),
    Fault(
        "epsilon only in the third step",
        "dinov2_with_registers.layernorm",
        "layer_norm",
        setting=("eps", 1e-1),
        steps=3,
        first_step=2,
    ),
)

_MASKED = "vit.embeddings"
_RESTORE = Fault(
    "put back in the order of the shuffle",
    _MASKED,
    "argsort to gather",
    "ids_restore = torch.argsort(ids_shuffle, dim=1).to(sequence.device)",
    "ids_restore = ids_shuffle.to(sequence.device)",
    method="random_masking",
)
_KEPT = Fault(
    "loss of the visible patches",
    "",
    "rsub sub mul",
    "loss = (loss * mask).sum() / mask.sum()",
    "loss = (loss * (1 - mask)).sum() / (1 - mask).sum()",
)
_VIT_MAE_FAULTS = (
    _RESTORE,
    replace(_RESTORE, name="two at once: order and loss", second=_KEPT),
    replace(_KEPT, name="loss of the visible patches, against another attention", variant="sdpa"),
    Fault(
        "variance of the population",
        "",
        "var",
        "var = target.var(dim=-1, keepdim=True)",
        "var = target.var(dim=-1, keepdim=True, unbiased=False)",
    ),
    Fault(
        "pixels of a patch transposed",
        "",
        "permute reshape mean",
        "patchified_pixel_values.permute(0, 2, 4, 3, 5, 1)",
        "patchified_pixel_values.permute(0, 2, 4, 5, 3, 1)",
        method="patchify",
    ),
    Fault(
        "tanh gelu",
        "decoder.decoder_layers.0.mlp",
        "gelu",
        "self.activation_fn(hidden_states)",
        'nn.functional.gelu(hidden_states, approximate="tanh")',
        paths="decoder.decoder_layers.0.mlp decoder.decoder_layers.0.mlp.activation_fn",
    ),
    Fault(
        "target times the inverse root",
        "",
        "div pow mul",
        "target = (target - mean) / (var + 1.0e-6) ** 0.5",
        "target = (target - mean) * (var + 1.0e-6) ** -0.5",
        has_effect=False,
    ),
    Fault(
        "token of the mask detached",
        "decoder",
        "detach repeat cat",
        "mask_tokens = self.mask_token.repeat(",
        "mask_tokens = self.mask_token.detach().repeat(",
        is_backward=True,
    ),
    Fault(
        "scale of the scores only in the third step",
        "vit.layers.1.attention",
        "mul",
        setting=("scaling", 1.0),
        steps=3,
        first_step=2,
    ),
)

_STAGE = "regnet.encoder.stages"
_SQUEEZE = Fault(
    "excitation added",
    f"{_STAGE}.0.layers.1.layer.2",
    "mul add",
    "hidden_state = hidden_state * attention",
    "hidden_state = hidden_state + attention",
)
_NORM = f"{_STAGE}.0.layers.0.layer.0.normalization"
_REGNET_FAULTS = (
    Fault("batch norm of the past", _NORM, "batch_norm add", setting=("training", False)),
    Fault("epsilon of a batch norm", f"{_STAGE}.0.layers.1.layer.1.normalization", "batch_norm", setting=("eps", 1e-1)),
    Fault("momentum of a batch norm", _NORM, "batch_norm", setting=("momentum", 0.9), has_effect=False),
    _SQUEEZE,
    replace(_SQUEEZE, name="excitation added, against channels last", variant="channels last"),
    Fault(
        "dropped residual",
        f"{_STAGE}.1.layers.0",
        "add relu",
        "hidden_state += residual",
        "hidden_state += 0",
        paths=f"{_STAGE}.1.layers.0 {_STAGE}.1.layers.0.activation",
    ),
    Fault(
        "excitation detached",
        f"{_STAGE}.1.layers.0.layer.2",
        "mul detach sigmoid",
        "hidden_state = hidden_state * attention",
        "hidden_state = hidden_state * attention.detach()",
        paths=f"{_STAGE}.1.layers.0.layer.2 {_STAGE}.1.layers.0.layer.2.attention.3",
        is_backward=True,
    ),
    Fault(
        "batch norm of the past in the third step",
        f"{_STAGE}.1.layers.0.shortcut.normalization",
        "batch_norm add",
        setting=("training", False),
        steps=3,
        first_step=2,
    ),
)

VISION_MODELS = (
    Model(
        "segformer",
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [16, 32],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [2, 4],
            "mlp_ratios": [2, 2],
            "classifier_dropout_prob": 0.0,
            "drop_path_rate": 0.0,
            "decoder_hidden_size": 16,
            "num_labels": LABELS,
        },
        make_scenes,
        (SDPA, CHANNELS_LAST, CHECKPOINTING, *EVERY),
        _SEGFORMER_FAULTS,
    ),
    Model(
        "dinov2_with_registers",
        "Dinov2WithRegistersForImageClassification",
        "Dinov2WithRegistersConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "mlp_ratio": 2,
            "image_size": 16,
            "patch_size": 4,
            "use_swiglu_ffn": True,
            "num_register_tokens": 3,
            "num_labels": LABELS,
        },
        make_large_images,
        (SDPA, CHANNELS_LAST, CHECKPOINTING, HALVES, *EVERY),
        _DINOV2_FAULTS,
    ),
    Model(
        "vit_mae",
        "ViTMAEForPreTraining",
        "ViTMAEConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "image_size": 16,
            "patch_size": 4,
            "decoder_num_attention_heads": 4,
            "decoder_hidden_size": 24,
            "decoder_num_hidden_layers": 1,
            "decoder_intermediate_size": 32,
            "mask_ratio": 0.5,
            "norm_pix_loss": True,
        },
        make_unlabeled_images,
        (SDPA, CHANNELS_LAST, CHECKPOINTING, *EVERY),  # halves would draw another mask
        _VIT_MAE_FAULTS,
    ),
    Model(
        "regnet",
        "RegNetForImageClassification",
        "RegNetConfig",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 1], "groups_width": 4, "num_labels": LABELS},
        make_images,
        (CHANNELS_LAST, *EVERY),
        _REGNET_FAULTS,
        has_attention=False,
    ),
)
