"""Kernels of Ascend devices: `torch_npu.npu_…`, by their documentation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tensorprobe.replay.meaning.kernel_attention import find_distance
from tensorprobe.replay.meaning.kernel_gate import rotate
from tensorprobe.replay.meaning.registry import build_in

_TO_HEADS_FIRST: dict[str, Callable[[Tensor, int], Tensor]] = {
    "BNSD": lambda tensor, heads: tensor,
    "BSND": lambda tensor, heads: tensor.transpose(1, 2),
    "BSH": lambda tensor, heads: tensor.unflatten(-1, (heads, -1)).transpose(1, 2),
    "SBH": lambda tensor, heads: tensor.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3),
}
_FROM_HEADS_FIRST: dict[str, Callable[[Tensor], Tensor]] = {
    "BNSD": lambda tensor: tensor,
    "BSND": lambda tensor: tensor.transpose(1, 2),
    "BSH": lambda tensor: tensor.transpose(1, 2).flatten(2),
    "SBH": lambda tensor: tensor.permute(2, 0, 1, 3).flatten(2),
}
_NO_MASK, _WHOLE_MASK, _CAUSAL_FIRST, _CAUSAL_LAST, _BAND = range(5)
"""Values of sparse_mode: a mask or none; a mask; the first query sees the first key, the last sees the last; a band."""


@build_in("NPU.npu_fusion_attention", "NPU.npu_fusion_attention_v2")
def npu_fusion_attention(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, *unnamed: Any, **options: Any
) -> tuple[Any, ...]:
    """Softmax(scale · (pse + query · keyᵀ), masked where atten_mask is true) · value."""
    known = ("pse", "padding_mask", "atten_mask", "scale", "keep_prob", "pre_tockens", "next_tockens")
    options = {**dict(zip(known, unnamed, strict=False)), **options}
    if len(unnamed) > len(known) or options.get("padding_mask") is not None or options.get("prefix") is not None:
        raise NotImplementedError("padding_mask or prefix, or options behind next_tockens without their names")
    if options.get("keep_prob", 1.0) != 1.0:
        raise NotImplementedError("dropout inside the kernel, whose mask is not recorded")
    if options.get("pse_type", 1) != 1:
        raise NotImplementedError("pse_type other than 1")
    if input_layout not in _TO_HEADS_FIRST:
        raise NotImplementedError(f"input_layout {input_layout}")
    heads_first = _TO_HEADS_FIRST[input_layout]
    query = heads_first(query, head_num)
    size = query.size(-1)
    key, value = (heads_first(item, item.size(-1) // size if item.dim() == 3 else head_num) for item in (key, value))
    group = query.size(1) // key.size(1)
    if group > 1:
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    weights = query @ key.transpose(-2, -1)
    if options.get("pse") is not None:
        weights = weights + options["pse"]
    weights = weights * options.get("scale", 1.0)
    mask = _find_mask(weights, options)
    if mask is not None:
        weights = weights.masked_fill(mask, -torch.inf)
    return (_FROM_HEADS_FIRST[input_layout](weights.softmax(-1) @ value), None, None, None, None, None, None)


def _find_mask(weights: Tensor, options: dict[str, Any]) -> Tensor | None:
    """True where a query does not see a key."""
    queries, keys = weights.shape[-2:]
    mode, given = options.get("sparse_mode", _NO_MASK), options.get("atten_mask")
    if mode in (_NO_MASK, _WHOLE_MASK):
        return given.bool() if given is not None else None
    distance = find_distance(queries, keys, weights.device)  # the last query's own is the last key
    if mode == _CAUSAL_FIRST:
        return distance + keys - queries > 0
    if mode == _CAUSAL_LAST:
        return distance > 0
    if mode == _BAND:
        before = options.get("pre_tockens", options.get("pre_tokens", 2**31 - 1))
        after = options.get("next_tockens", options.get("next_tokens", 2**31 - 1))
        return (distance < -before) | (distance > after)
    raise NotImplementedError(f"sparse_mode {mode}")


@build_in("NPU.npu_rms_norm")
def npu_rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """x · rstd · gamma, and rstd"""
    places = tuple(range(-gamma.dim(), 0))
    scale = (x.square().mean(places, keepdim=True) + epsilon).rsqrt()
    return x * scale * gamma, scale


@build_in("NPU.npu_add_rms_norm")
def npu_add_rms_norm(first: Tensor, second: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, ...]:
    """The same of a sum, and the sum"""
    total = first + second
    return (*npu_rms_norm(total, gamma, epsilon), total)


@build_in("NPU.npu_swiglu")
def npu_swiglu(x: Tensor, dim: int = -1) -> Tensor:
    """silu(first half) · second half"""
    first, second = x.chunk(2, dim)
    return torch.nn.functional.silu(first) * second


@build_in("NPU.npu_rotary_mul")
def npu_rotary_mul(x: Tensor, cosine: Tensor, sine: Tensor, rotary_mode: str = "half") -> Tensor:
    """x · cosine + rotated x · sine"""
    if rotary_mode not in ("half", "interleave"):
        raise NotImplementedError(f"rotary_mode {rotary_mode}")
    return x * cosine + rotate(x, is_interleaved=rotary_mode == "interleave") * sine
