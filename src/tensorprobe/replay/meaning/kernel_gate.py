"""Fused gates (SwiGLU, GeGLU) and rotary embeddings: Megatron, flash_attn, xformers, Liger."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorprobe.replay.meaning.registry import build_in


@build_in("Autograd.SwiGLUFunction")
def swiglu(x: Tensor, other: Any = None, *_: Any) -> Tensor:
    """flash_attn: silu(x) · other. Megatron: of the two halves of x."""
    first, second = (x, other) if isinstance(other, Tensor) else x.chunk(2, -1)
    return F.silu(first) * second


@build_in("Autograd.BiasSwiGLUFunction")
def biased_swiglu(x: Tensor, bias: Tensor, *_: Any) -> Tensor:
    """Megatron"""
    return swiglu(x + bias)


@build_in("Autograd._SwiGLUFusedFunc", "Autograd._SwiGLUDecomposedFunc")
def swiglu_layer(
    x: Tensor, weight_first: Tensor, bias_first: Any, weight_second: Tensor, bias_second: Any, weight_last: Tensor,
    bias_last: Any,
) -> Tensor:  # fmt: skip
    """xformers: linear(silu(linear(x)) · linear(x))"""
    gate = F.silu(F.linear(x, weight_first, bias_first)) * F.linear(x, weight_second, bias_second)
    return F.linear(gate, weight_last, bias_last)


@build_in("Autograd.LigerSiLUMulFunction")
def liger_silu_mul(first: Tensor, second: Tensor) -> Tensor:
    return F.silu(first) * second


@build_in("Autograd.LigerGELUMulFunction")
def liger_gelu_mul(first: Tensor, second: Tensor) -> Tensor:
    return F.gelu(first, approximate="tanh") * second


def rotate(x: Tensor, is_interleaved: bool = False) -> Tensor:
    """A quarter turn of every pair: of the two halves, or of neighbours."""
    if is_interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


@build_in("Autograd.LigerRopeFunction")
def liger_rope(
    query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor, positions: Any = None, dim: int = 1
) -> tuple[Tensor, Tensor]:
    """[batch, heads, length, size], with cosine and sine [1 or batch, length, size]"""
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    return query * cosine + rotate(query) * sine, key * cosine + rotate(key) * sine


@build_in("Autograd.ApplyRotaryEmb")
def flash_rotary(
    x: Tensor, cosine: Tensor, sine: Tensor, interleaved: bool = False, inplace: bool = False, *rest: Any
) -> Tensor:
    """flash_attn: [batch, length, heads, size], with cosine and sine [length, half of what is turned]"""
    if inplace or any(item not in (0, None) for item in rest if not isinstance(item, Tensor)):
        raise NotImplementedError("in place, or with an offset")
    if any(isinstance(item, Tensor) for item in rest):
        raise NotImplementedError("sequences of several lengths, or an offset of each")
    size = 2 * cosine.size(-1)
    cosine, sine = (
        (item.repeat_interleave(2, -1) if interleaved else torch.cat((item, item), -1))[: x.size(1), None]
        for item in (cosine, sine)
    )
    turned, still = x[..., :size], x[..., size:]
    return torch.cat((turned * cosine + rotate(turned, interleaved) * sine, still), -1)
