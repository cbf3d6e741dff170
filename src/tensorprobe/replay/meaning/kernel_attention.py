"""Fused attention: flash_attn (2 and 3), and torch's own operators behind `scaled_dot_product_attention`.

A meaning raises NotImplementedError for what the record does not tell, such as the mask of a dropout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorprobe.replay.meaning.registry import build_in


@dataclass(frozen=True)
class Scores:
    """How the product of queries and keys becomes weights."""

    scale: float | None = None
    is_causal: bool = False
    """The last query sees the last key."""
    window: tuple[int, int] = (-1, -1)
    """So many keys to the left and right of its own does a query see; -1 for all."""
    softcap: float = 0.0
    slopes: Tensor | None = None
    """Of ALiBi, by heads, or by batch and heads."""

    def find_mask(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """True where a query sees a key; None where each sees all."""
        left, right = self.window[0], 0 if self.is_causal else self.window[1]
        if left < 0 and right < 0:
            return None
        distance = find_distance(queries, keys, device)
        mask = torch.ones(queries, keys, dtype=torch.bool, device=device)
        mask = mask & (distance >= -left) if left >= 0 else mask
        return mask & (distance <= right) if right >= 0 else mask

    def hides_all(self, queries: int, keys: int) -> bool:
        """Is there a query that sees no key? Known without looking at the mask."""
        right = 0 if self.is_causal else self.window[1]
        return right >= 0 and keys - queries + right < 0

    @property
    def is_plain(self) -> bool:
        """Does torch have a function that computes it without all weights in memory?"""
        return not self.softcap and self.slopes is None


def find_distance(queries: int, keys: int, device: torch.device) -> Tensor:
    """How far each key lies to the right of a query's own; the last query's own is the last key."""
    own = torch.arange(queries, device=device) + keys - queries
    return torch.arange(keys, device=device) - own[:, None]


def attend(query: Tensor, key: Tensor, value: Tensor, scores: Scores, wants_sum: bool = False) -> tuple[Tensor, Any]:
    """Attention over [batch, heads, length, size], and the logarithm of the sum of exponentials if it is asked for.
    Where a query sees no key, its result is zero."""
    group = query.size(1) // key.size(1)
    if group > 1:
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    mask = scores.find_mask(query.size(-2), key.size(-2), query.device)
    seen, sees_none = mask, None
    if mask is not None and scores.hides_all(query.size(-2), key.size(-2)):
        sees_none = ~mask.any(-1, keepdim=True)
        seen = mask | sees_none  # not NaN, whose gradient would spread; their result is put to zero below
    scale = query.size(-1) ** -0.5 if scores.scale is None else scores.scale
    total = None
    if scores.is_plain and not wants_sum:
        result = F.scaled_dot_product_attention(query, key, value, seen, scale=scale)
    else:
        weights = _weigh(query, key, scores, scale)
        weights = weights if seen is None else weights.masked_fill(~seen, -torch.inf)
        result, total = weights.softmax(-1) @ value, weights.logsumexp(-1)
    if sees_none is not None:
        result = result.masked_fill(sees_none, 0.0)
        total = total.masked_fill(sees_none[..., 0], torch.inf) if total is not None else None
    return result, total


def _weigh(query: Tensor, key: Tensor, scores: Scores, scale: float) -> Tensor:
    weights = query @ key.transpose(-2, -1) * scale
    if scores.softcap:
        weights = scores.softcap * torch.tanh(weights / scores.softcap)
    if scores.slopes is not None:
        distance = find_distance(query.size(-2), key.size(-2), query.device).abs().to(weights.dtype)
        slopes = scores.slopes if scores.slopes.dim() == 2 else scores.slopes[None]
        weights = weights - slopes[:, :, None, None] * distance
    return weights


def attend_pieces(query: Tensor, key: Tensor, value: Tensor, ends: tuple[Any, Any], scores: Scores) -> Tensor:
    """Attention over sequences of several lengths one behind the other, [total, heads, size]; `ends` are where the
    sequences of queries and of keys begin and end, 0 first."""
    pieces = []
    starts_query, starts_key = [[int(number) for number in item] for item in ends]
    for number in range(len(starts_query) - 1):
        rows = slice(starts_query[number], starts_query[number + 1])
        columns = slice(starts_key[number], starts_key[number + 1])
        slopes = scores.slopes[number] if scores.slopes is not None and scores.slopes.dim() == 2 else scores.slopes
        own = Scores(scores.scale, scores.is_causal, scores.window, scores.softcap, slopes)
        first, second, third = (part[None].transpose(1, 2) for part in (query[rows], key[columns], value[columns]))
        pieces.append(attend(first, second, third, own)[0][0].transpose(0, 1))
    return torch.cat(pieces) if pieces else torch.zeros_like(query)


def read_scores(rest: Sequence[Any]) -> Scores:
    """The arguments of flash_attn behind the tensors: versions have added to them and put them in another order.

    2: dropout_p, softmax_scale, causal, [window_size, [softcap], alibi_slopes, deterministic], return_softmax, …
    3: softmax_scale, causal, qv, q_descale, k_descale, v_descale, window_size, attention_chunk, softcap, …
    """
    is_third = len(rest) > 1 and isinstance(rest[1], bool)
    if not is_third:
        if rest[0]:
            raise NotImplementedError("dropout inside the kernel, whose mask is not recorded")
        rest = rest[1:]
    scale, is_causal, *others = rest
    place = next((n for n, item in enumerate(others) if isinstance(item, (tuple, list))), None)
    if place is None:
        return Scores(scale, bool(is_causal))
    before, window, after = others[:place], others[place], list(others[place + 1 :])
    if any(item is not None for item in before):
        raise NotImplementedError("qv, or the scales of float8, in flash_attn 3")
    if is_third and after and type(after[0]) is int and after.pop(0):
        raise NotImplementedError("attention_chunk in flash_attn 3")
    softcap = after.pop(0) if after and isinstance(after[0], (int, float)) and not isinstance(after[0], bool) else 0.0
    slopes = after.pop(0) if after and isinstance(after[0], Tensor) else None
    if any(isinstance(item, Tensor) for item in after):
        raise NotImplementedError("keys and values in pages (block_table)")
    return Scores(scale, bool(is_causal), (int(window[0]), int(window[1])), float(softcap), slopes)


def _flash(query: Tensor, key: Tensor, value: Tensor, rest: Sequence[Any]) -> tuple[Any, ...]:
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    result, total = attend(query, key, value, read_scores(rest), wants_sum=rest_asks_sum(rest))
    return result.transpose(1, 2), total, None


def rest_asks_sum(rest: Sequence[Any]) -> bool:
    """Is any switch on behind causal? One of them is return_softmax; the sum costs all weights in memory."""
    place = next((n for n, item in enumerate(rest) if isinstance(item, bool)), len(rest))
    return any(item is True for item in rest[place + 1 :])


@build_in("Autograd.FlashAttnFunc")
def flash_attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Any, ...]:
    """[batch, length, heads, size]"""
    return _flash(query, key, value, rest)


@build_in("Autograd.FlashAttnQKVPackedFunc")
def flash_attention_packed(packed: Tensor, *rest: Any) -> tuple[Any, ...]:
    """[batch, length, 3, heads, size]"""
    if packed.dim() != 5:
        raise NotImplementedError("queries, keys and values packed along the heads")
    query, key, value = packed.unbind(2)
    return _flash(query, key, value, rest)


@build_in("Autograd.FlashAttnKVPackedFunc")
def flash_attention_packed_keys(query: Tensor, packed: Tensor, *rest: Any) -> tuple[Any, ...]:
    """[batch, length, heads, size], [batch, length, 2, heads, size]"""
    key, value = packed.unbind(2)
    return _flash(query, key, value, rest)


@build_in("Autograd.FlashAttnVarlenFunc")
def flash_attention_pieces(
    query: Tensor, key: Tensor, value: Tensor, ends_query: Tensor, ends_key: Tensor, *rest: Any
) -> tuple[Any, ...]:
    """[total, heads, size]; then the longest lengths, behind those in use in flash_attn 3."""
    lengths = rest[: next(n for n, item in enumerate(rest) if isinstance(item, int))]
    if any(item is not None for item in lengths):
        raise NotImplementedError("lengths in use (seqused_q, seqused_k)")
    scores = read_scores(rest[len(lengths) + 2 :])
    return attend_pieces(query, key, value, (ends_query, ends_key), scores), None, None


@build_in("Autograd.FlashAttnVarlenQKVPackedFunc")
def flash_attention_packed_pieces(packed: Tensor, ends: Tensor, longest: int, *rest: Any) -> tuple[Any, ...]:
    """[total, 3, heads, size]"""
    query, key, value = packed.unbind(1)
    return attend_pieces(query, key, value, (ends, ends), read_scores(rest)), None, None


@build_in("Autograd.FlashAttnVarlenKVPackedFunc")
def flash_attention_packed_key_pieces(
    query: Tensor, packed: Tensor, ends_query: Tensor, ends_key: Tensor, *rest: Any
) -> tuple[Any, ...]:
    """[total, heads, size], [total, 2, heads, size]; then the longest lengths"""
    key, value = packed.unbind(1)
    return attend_pieces(query, key, value, (ends_query, ends_key), read_scores(rest[2:])), None, None


# -- torch's own, as libraries and exported programs call them ---------------------------------------------------------


def _attend_by_torch(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float, is_causal: bool, scale: Any
) -> tuple[Tensor, Tensor]:
    if dropout:
        raise NotImplementedError("dropout inside the kernel, whose mask is not recorded")
    weights = query @ key.transpose(-2, -1) * (query.size(-1) ** -0.5 if scale is None else scale)
    if is_causal:  # the first query sees the first key alone
        weights = weights.masked_fill(~torch.ones_like(weights, dtype=torch.bool).tril(), -torch.inf)
    if bias is not None:
        weights = weights.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else weights + bias
    return weights.softmax(-1) @ value, weights.logsumexp(-1)


@build_in("Ops.aten._scaled_dot_product_flash_attention_for_cpu")
def torch_flash_attention_cpu(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    return _attend_by_torch(query, key, value, attn_mask, dropout_p, is_causal, scale)


@build_in("Ops.aten._scaled_dot_product_flash_attention")
def torch_flash_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    return _attend_by_torch(query, key, value, None, dropout_p, is_causal, scale)


@build_in("Ops.aten._scaled_dot_product_efficient_attention")
def torch_efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    return _attend_by_torch(query, key, value, attn_bias, dropout_p, is_causal, scale)[0], None


@build_in("Ops.aten._scaled_dot_product_cudnn_attention")
def torch_cudnn_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    return _attend_by_torch(query, key, value, attn_bias, dropout_p, is_causal, scale)[0], None


@build_in("Ops.aten._scaled_dot_product_attention_math")
def torch_plain_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, dropout_mask: Tensor | None = None, *, scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    if dropout_mask is not None:
        raise NotImplementedError("a mask of dropout")
    if enable_gqa:
        group = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)
    return _attend_by_torch(query, key, value, attn_mask, dropout_p, is_causal, scale)[0], None
