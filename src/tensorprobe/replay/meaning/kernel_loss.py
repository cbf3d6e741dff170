"""Fused cross entropies: Liger, flash_attn, apex."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorprobe.replay.meaning.registry import build_in


@build_in("Autograd.LigerCrossEntropyFunction")
def liger_cross_entropy(logits: Tensor, target: Tensor, *rest: Any) -> tuple[Any, ...]:
    """(…, weight (not in older versions), ignore_index, lse_square_scale, label_smoothing, reduction, softcap, …)"""
    options = list(rest)
    weight = options.pop(0) if options and (options[0] is None or isinstance(options[0], Tensor)) else None
    return _liger_loss(logits, target, weight, options)


@build_in("Autograd.LigerFusedLinearCrossEntropyFunction")
def liger_linear_cross_entropy(
    x: Tensor, linear: Tensor, target: Tensor, bias: Any = None, *rest: Any
) -> tuple[Any, ...]:
    """(…, ce_weight, ignore_index, …); older versions have fewer, and ignore_index in the place of a bias"""
    logits = F.linear(x, linear, bias if isinstance(bias, Tensor) else None)
    options = list(rest) if bias is None or isinstance(bias, Tensor) else [bias, *rest]
    weight = options.pop(0) if options and (options[0] is None or isinstance(options[0], Tensor)) else None
    return _liger_loss(logits, target, weight, options)


def _liger_loss(logits: Tensor, target: Tensor, weight: Tensor | None, options: list[Any]) -> tuple[Any, ...]:
    defaults: list[Any] = [-100, 0.0, 0.0, "mean", None]
    ignored, square_scale, smoothing, reduction, softcap = options[:5] + defaults[len(options[:5]) :]
    if isinstance(smoothing, str):  # a version between: ignore_index, label_smoothing, reduction
        raise NotImplementedError("the arguments of this version of Liger")
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    loss = F.cross_entropy(logits, target, weight, ignore_index=ignored, label_smoothing=smoothing, reduction=reduction)
    if square_scale:
        counts = target != ignored
        squares = square_scale * logits.logsumexp(-1).square() * counts
        added = {"none": squares, "sum": squares.sum(), "mean": squares.sum() / counts.sum()}[reduction]
        return loss + added, added, None, None
    return loss, None, None, None


@build_in("Autograd.CrossEntropyLoss")
def flash_cross_entropy(logits: Tensor, labels: Tensor, *rest: Any) -> tuple[Any, ...]:
    """flash_attn: (…, precomputed_lse (not in older versions), smoothing, logit_scale, lse_square_scale, ignore_index,
    inplace_backward, process_group), one loss for each row."""
    options = list(rest)
    if options and (options[0] is None or isinstance(options[0], Tensor)):
        options.pop(0)
    defaults: list[Any] = [0.0, 1.0, 0.0, -100]
    smoothing, scale, square_scale, ignored = options[:4] + defaults[len(options[:4]) :]
    if len(options) > 5 and options[5] is not None:
        raise NotImplementedError("logits that are spread over several processes")
    logits = logits * scale
    losses = F.cross_entropy(logits, labels, ignore_index=ignored, label_smoothing=smoothing, reduction="none")
    squares = square_scale * logits.logsumexp(-1).square() * (labels != ignored)
    return losses + squares, squares


@build_in("Autograd.SoftmaxCrossEntropyLoss")
def apex_cross_entropy(
    logits: Tensor, labels: Tensor, smoothing: float = 0.0, padding_idx: int = 0, half_to_float: bool = False
) -> Tensor:
    """apex: one loss for each row, zero where the label is padding."""
    losses = F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="none")
    return losses.masked_fill(labels == padding_idx, 0.0)
