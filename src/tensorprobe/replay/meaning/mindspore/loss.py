"""Losses. Nothing comes back to the weights of classes and elements, nor to some targets."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorprobe.replay.meaning.mindspore.table import MINT_F, OPS, means


def reduce(losses: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.mean()


def _fixed(weight: Tensor | None) -> Tensor | None:
    return None if weight is None else weight.detach()


def _classes(target: Tensor) -> Tensor:
    """Torch takes no 32 bits for a class."""
    return target if target.is_floating_point() else target.long()


@means("cross_entropy", OPS)
def cross_entropy_written_out(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """As `ops` has it: a gradient comes back to the weights, too."""
    if weight is None or target.is_floating_point():
        return cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)
    logs = torch.log_softmax(input, 1 if input.dim() > 1 else 0)
    return weighted_loss(logs, target, weight, ignore_index, reduction, label_smoothing)


def weighted_loss(
    logs: Tensor, target: Tensor, weight: Tensor, ignore_index: int, reduction: str, label_smoothing: float = 0.0
) -> Tensor:
    """Each element counts as much as its class weighs; the mean is over the weights that count."""
    logs = logs.movedim(1, -1) if logs.dim() > 1 else logs
    counts = target != ignore_index
    places = torch.where(counts, target, torch.zeros_like(target)).long()
    share = weight[places] * counts
    losses = -share * logs.gather(-1, places.unsqueeze(-1)).squeeze(-1)
    if label_smoothing:
        smooth = -(logs * weight).sum(-1) * counts / logs.shape[-1]
        losses = (1 - label_smoothing) * losses + label_smoothing * smooth
    return losses.sum() / share.sum() if reduction == "mean" else reduce(losses, reduction)


@means("cross_entropy", MINT_F)
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    return F.cross_entropy(
        input,
        _classes(target),
        _fixed(weight),
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


@means("nll_loss", OPS)
def nll_loss(
    inputs: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    if label_smoothing:
        raise NotImplementedError("a smoothed nll_loss")
    if weight is not None:
        return weighted_loss(inputs, target, weight, ignore_index, reduction)
    return F.nll_loss(inputs, target.long(), _fixed(weight), ignore_index=ignore_index, reduction=reduction)


@means("nll_loss", MINT_F)
def nll_loss_mint(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    return F.nll_loss(input, target.long(), _fixed(weight), ignore_index=ignore_index, reduction=reduction)


@means("NLLLoss")
def nll_loss_primitive(
    input: Tensor, target: Tensor, weight: Tensor, *, reduction: str = "mean", ignore_index: int = -100
) -> tuple[Tensor, Tensor]:
    """The loss, and the sum of the weights."""
    target = target.long()
    counted = torch.where(target == ignore_index, weight.new_zeros(()), weight[target.clamp(min=0)])
    loss = F.nll_loss(input, target, weight.detach(), ignore_index=ignore_index, reduction=reduction)
    return loss, counted.sum().detach()


@means("mse_loss", OPS, MINT_F)
def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return reduce((input - target).square(), reduction)


@means("l1_loss", OPS, MINT_F)
def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return reduce((input - target).abs(), reduction)


@means("smooth_l1_loss", OPS)
def smooth_l1_loss(input: Tensor, target: Tensor, beta: float = 1.0, reduction: str = "none") -> Tensor:
    return F.smooth_l1_loss(input, target, reduction=reduction, beta=beta)


@means("SmoothL1Loss")
def smooth_l1_primitive(input: Tensor, target: Tensor, beta: float = 1.0, reduction: str = "none") -> Tensor:
    return F.smooth_l1_loss(input, target, reduction=reduction, beta=beta)


@means("huber_loss", OPS)
def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    return F.huber_loss(input, target, reduction=reduction, delta=delta)


@means("kl_div", OPS)
def kl_div(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return F.kl_div(input, target.detach(), reduction=reduction)


@means("KLDivLoss")
def kl_div_primitive(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return F.kl_div(input, target.detach(), reduction=reduction)


@means("binary_cross_entropy BinaryCrossEntropy", OPS, MINT_F)
def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    return F.binary_cross_entropy(input, target, _fixed(weight), reduction=reduction)


@means("binary_cross_entropy_with_logits BCEWithLogitsLoss", OPS)
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    return F.binary_cross_entropy_with_logits(
        input, target, _fixed(weight), reduction=reduction, pos_weight=_fixed(pos_weight)
    )


@means("binary_cross_entropy_with_logits", MINT_F)
def binary_cross_entropy_with_logits_mint(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    return F.binary_cross_entropy_with_logits(
        input, target, _fixed(weight), reduction=reduction, pos_weight=_fixed(pos_weight)
    )


@means("SigmoidCrossEntropyWithLogits")
def sigmoid_cross_entropy(input: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(input, target.detach(), reduction="none")


@means("SoftmaxCrossEntropyWithLogits")
def softmax_cross_entropy(input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The losses, and their derivative."""
    losses = -(target.detach() * torch.log_softmax(input, -1)).sum(-1)
    return losses, (torch.softmax(input, -1) - target).detach()


@means("SparseSoftmaxCrossEntropyWithLogits")
def sparse_softmax_cross_entropy(input: Tensor, target: Tensor, is_grad: bool = False) -> Tensor:
    if is_grad:
        raise NotImplementedError("the derivative in the place of the loss")
    return F.cross_entropy(input, target.long())


@means("cosine_embedding_loss", OPS)
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Any:
    return F.cosine_embedding_loss(input1, input2, target, margin, reduction=reduction)


@means("margin_ranking_loss", OPS)
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Any:
    return F.margin_ranking_loss(input1, input2, target, margin, reduction=reduction)
