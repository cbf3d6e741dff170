"""Fused normalisations and softmaxes: apex, Megatron, Transformer Engine, Liger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorprobe.replay.meaning.registry import build_in

_MASKED = -10_000.0
"""What the masked softmaxes of Megatron put in place of a masked score."""


def normalise_by_root(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float) -> Tensor:
    """RMSNorm over the last dimensions."""
    places = tuple(range(-len(shape), 0))
    result = x * (x.square().mean(places, keepdim=True) + eps).rsqrt()
    return result if weight is None else result * weight


@build_in("Autograd.FusedLayerNormAffineFunction")
def apex_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, shape: Sequence[int], eps: float, *_: Any) -> Tensor:
    return F.layer_norm(x, list(shape), weight, bias, eps)


@build_in("Autograd.FusedLayerNormFunction")
def apex_plain_layer_norm(x: Tensor, shape: Sequence[int], eps: float, *_: Any) -> Tensor:
    return F.layer_norm(x, list(shape), None, None, eps)


@build_in("Autograd.FastLayerNormFN")
def apex_fast_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *_: Any) -> Tensor:
    return F.layer_norm(x, [x.size(-1)], weight, bias, eps)


@build_in("Autograd.FusedRMSNormAffineFunction")
def apex_rms_norm(x: Tensor, weight: Tensor, shape: Sequence[int], eps: float, *rest: Any) -> Tensor:
    if any(isinstance(item, Tensor) for item in rest):
        raise NotImplementedError("a residual")
    return normalise_by_root(x, shape, weight, eps)


@build_in("Autograd.FusedRMSNormFunction")
def apex_plain_rms_norm(x: Tensor, shape: Sequence[int], eps: float, *_: Any) -> Tensor:
    return normalise_by_root(x, shape, None, eps)


@build_in("Autograd.LigerRMSNormFunction")
def liger_rms_norm(
    x: Tensor, weight: Tensor | None, eps: float, offset: float = 0.0, casting_mode: str = "llama", *_: Any
) -> Tensor:
    """Where it casts is rounding, and means nothing."""
    return normalise_by_root(x, (x.size(-1),), None if weight is None else weight + offset, eps)


@build_in("Autograd.LigerLayerNormFunction")
def liger_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *_: Any) -> Tensor:
    return F.layer_norm(x, [x.size(-1)], weight, bias, eps)


@build_in("Autograd.ScaledSoftmax")
def scaled_softmax(scores: Tensor, scale: float, *_: Any) -> Tensor:
    return (scores * scale).softmax(-1)


@build_in("Autograd.ScaledUpperTriangMaskedSoftmax")
def causal_softmax(scores: Tensor, scale: float, *_: Any) -> Tensor:
    """Each query sees the keys up to its own; the others get exactly zero."""
    sees = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return (scores * scale).masked_fill(~sees, -torch.inf).softmax(-1)


@build_in("Autograd.ScaledMaskedSoftmax")
def masked_softmax(scores: Tensor, mask: Tensor, scale: float, *_: Any) -> Tensor:
    """Masked where the mask is true; a row of which all is masked gives zeros."""
    hides = mask.bool().expand(scores.shape)
    return (scores * scale).masked_fill(hides, _MASKED).softmax(-1).masked_fill(hides.all(-1, keepdim=True), 0.0)
