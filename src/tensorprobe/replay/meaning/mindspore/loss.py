"""Losses. Nothing comes back to the weights of classes and elements, nor to some targets."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorprobe.replay.meaning.mindspore.table import MINT_F, OPS, means
from tensorprobe.replay.meaning.torch import Context

_REDUCTIONS = {0: "sum", 1: "mean", 2: "none"}
"""As kernels are given them."""


def _name(reduction: Any) -> str:
    return str(_REDUCTIONS.get(reduction, reduction))


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
    input: Tensor, target: Tensor, weight: Tensor, reduction: Any = "mean", ignore_index: int = -100
) -> tuple[Tensor, Tensor]:
    """The loss, and the sum of the weights."""
    target = target.long()
    counted = torch.where(target == ignore_index, weight.new_zeros(()), weight[target.clamp(min=0)])
    loss = F.nll_loss(input, target, weight.detach(), ignore_index=ignore_index, reduction=_name(reduction))
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
def smooth_l1_primitive(input: Tensor, target: Tensor, beta: float = 1.0, reduction: Any = "none") -> Tensor:
    return F.smooth_l1_loss(input, target, reduction=_name(reduction), beta=beta)


@means("huber_loss", OPS)
def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    return F.huber_loss(input, target, reduction=reduction, delta=delta)


@means("kl_div", OPS)
def kl_div(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return F.kl_div(input, target.detach(), reduction=reduction)


@means("KLDivLoss")
def kl_div_primitive(input: Tensor, target: Tensor, reduction: Any = "mean") -> Tensor:
    return F.kl_div(input, target.detach(), reduction=_name(reduction))


@means("binary_cross_entropy BinaryCrossEntropy", OPS, MINT_F)
def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: Any = "mean"
) -> Tensor:
    return F.binary_cross_entropy(input, target, _fixed(weight), reduction=_name(reduction))


@means("binary_cross_entropy_with_logits BCEWithLogitsLoss", OPS)
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: Any = "mean",
) -> Tensor:
    return F.binary_cross_entropy_with_logits(
        input, target, _fixed(weight), reduction=_name(reduction), pos_weight=_fixed(pos_weight)
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


@means("multilabel_soft_margin_loss", OPS)
def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    losses = -(target * F.logsigmoid(input) + (1 - target) * F.logsigmoid(-input))
    losses = losses if weight is None else losses * weight
    return reduce(losses.mean(-1), reduction)


@means("hinge_embedding_loss", OPS)
def hinge_embedding_loss(inputs: Tensor, targets: Tensor, margin: Any = 1.0, reduction: str = "mean") -> Tensor:
    """Where the target is zero, so is the loss."""
    losses = torch.where(targets > 0, inputs, (margin - inputs).clamp(min=0))
    return reduce(torch.where(targets == 0, torch.zeros_like(losses), losses), reduction)


@means("gaussian_nll_loss", OPS)
def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """A gradient comes back to the variance where it is above epsilon."""
    var = var.unsqueeze(-1) if input.shape != var.shape and input.shape[:-1] == var.shape else var
    var = torch.maximum(var, torch.full_like(var, eps))
    losses = 0.5 * (var.log() + (input - target).square() / var) + (0.5 * math.log(2 * math.pi) if full else 0)
    return reduce(losses, reduction)


@means("multi_margin_loss", OPS)
def multi_margin_loss(
    input: Tensor, target: Tensor, p: int = 1, margin: Any = 1, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    return F.multi_margin_loss(input, target.long(), p, float(margin), _fixed(weight), reduction=reduction)


@means("ctc_loss", OPS, needs_context=True)
def ctc_loss(
    context: Context,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """The loss, and what its backward keeps."""
    lengths = (input_lengths.long(), target_lengths.long())
    loss = F.ctc_loss(log_probs, targets.long(), *lengths, blank, reduction, zero_infinity)
    return loss, context.precision.convert(context.recorded_results(1))
