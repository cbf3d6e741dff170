"""Convolutions, poolings, norms, dropout, resizing: what layers compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorprobe.replay.meaning.mindspore.table import MINT_F, OPS, as_tuple, means
from tensorprobe.replay.meaning.torch import Context, drop

_PAD_MODES = {0: "pad", 1: "same", 2: "valid"}


def pinned(context: Context, number: int) -> Tensor:
    """A result that means nothing, or only something to the call's own backward: as it was recorded."""
    return context.precision.convert(context.recorded_results(number))


def _sizes(value: Any, count: int) -> tuple[int, ...]:
    """One number for all dimensions, one for each, or also those of the batch and the channels."""
    sizes = as_tuple(value)
    return sizes * count if len(sizes) == 1 else tuple(sizes[-count:])


def _mode(pad_mode: Any) -> str:
    return _PAD_MODES[pad_mode] if isinstance(pad_mode, int) else str(pad_mode).lower()


def _need_channels_first(data_format: Any) -> None:
    if str(data_format) not in ("NCHW", "NCDHW", "0"):
        raise NotImplementedError(f"data_format {data_format}")


def same_padding(
    size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """What is put before and after each dimension, so that there is a result for every step; last dimension first, as
    torch has it."""
    found: list[int] = []
    for length, width, step, gap in zip(size, kernel, stride, dilation, strict=True):
        missing = max((-(-length // step) - 1) * step + (width - 1) * gap + 1 - length, 0)
        found = [missing // 2, missing - missing // 2, *found]
    return found


def _padding(input: Tensor, kernel: Sequence[int], stride: Any, dilation: Any, pad_mode: Any, pad: Any) -> list[int]:
    count = len(kernel)
    mode = _mode(pad_mode)
    if mode == "same":
        return same_padding(input.shape[-count:], kernel, stride, dilation)
    if mode == "valid":
        return [0] * (2 * count)
    sizes = as_tuple(pad)
    if len(sizes) == 2 * count:
        return [side for place in range(count - 1, -1, -1) for side in sizes[2 * place : 2 * place + 2]]
    each = _sizes(pad, count)
    return [side for place in range(count - 1, -1, -1) for side in (each[place], each[place])]


_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@means("conv1d conv2d conv3d", OPS)
def convolve(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    pad_mode: Any = "valid",
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    kernel = tuple(weight.shape[2:])
    count = len(kernel)
    steps, gaps = _sizes(stride, count), _sizes(dilation, count)
    padded = F.pad(input, _padding(input, kernel, steps, gaps, pad_mode, padding))
    return _CONVOLUTIONS[count](padded, weight, bias, steps, 0, gaps, groups)


@means("Conv2D Conv3D")
def convolve_primitive(
    input: Tensor,
    weight: Tensor,
    *,
    stride: Any = 1,
    pad_mode: Any = "valid",
    pad: Any = 0,
    dilation: Any = 1,
    group: int = 1,
    data_format: Any = "NCHW",
    **_: Any,
) -> Tensor:
    _need_channels_first(data_format)
    return convolve(input, weight, None, stride, pad_mode, pad, dilation, group)


@means("Conv2DTranspose Conv2DBackpropInput")
def convolve_back(
    input: Tensor,
    weight: Tensor,
    size: Sequence[int],
    *,
    stride: Any = 1,
    pad_mode: Any = "valid",
    pad: Any = 0,
    dilation: Any = 1,
    group: int = 1,
    data_format: Any = "NCHW",
    **_: Any,
) -> Tensor:
    """The derivative of a convolution whose input had this size."""
    _need_channels_first(data_format)
    kernel, steps, gaps = tuple(weight.shape[2:]), _sizes(stride, 2), _sizes(dilation, 2)
    wide = input.new_empty(tuple(int(one) for one in size))
    left, right, top, bottom = _padding(wide, kernel, steps, gaps, pad_mode, pad)
    padded = (wide.shape[2] + top + bottom, wide.shape[3] + left + right)
    rest = [
        whole - ((length - 1) * step + gap * (width - 1) + 1)
        for whole, length, step, gap, width in zip(padded, input.shape[2:], steps, gaps, kernel, strict=True)
    ]
    full = F.conv_transpose2d(input, weight, None, steps, 0, 0, group, gaps)
    full = F.pad(full, (0, max(rest[1], 0), 0, max(rest[0], 0)))
    return full[:, :, top : top + wide.shape[2], left : left + wide.shape[3]]


# -- poolings ----------------------------------------------------------------------------------------------------------

_MAX_POOLS = {2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGES = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


@means("MaxPool MaxPool3D")
def max_pool(
    input: Tensor,
    *,
    kernel_size: Any = 1,
    strides: Any = 1,
    pad_mode: Any = "valid",
    pad_list: Any = 0,
    ceil_mode: Any = None,
    data_format: Any = "NCHW",
) -> Tensor:
    _need_channels_first(data_format)
    count = input.dim() - 2
    kernel, steps = _sizes(kernel_size, count), _sizes(strides, count)
    padding = _padding(input, kernel, steps, (1,) * count, pad_mode, pad_list)
    padded = F.pad(input, padding, value=-torch.inf)
    return _MAX_POOLS[count](padded, kernel, steps, ceil_mode=bool(ceil_mode))


@means("AvgPool")
def average_pool(
    input: Tensor, *, kernel_size: Any = 1, strides: Any = 1, pad_mode: Any = "valid", data_format: Any = "NCHW"
) -> Tensor:
    """What was put around it is not counted."""
    _need_channels_first(data_format)
    kernel, steps = _sizes(kernel_size, 2), _sizes(strides, 2)
    padding = _padding(input, kernel, steps, (1, 1), pad_mode, 0)
    return _average(input, kernel, steps, padding)


def _average(input: Tensor, kernel: tuple[int, ...], steps: tuple[int, ...], padding: list[int]) -> Tensor:
    pool = _AVERAGES[len(kernel)]
    if not any(padding):
        return pool(input, kernel, steps)
    sums, counts = (pool(F.pad(one, padding), kernel, steps) for one in (input, torch.ones_like(input)))
    return sums / counts


@means("AvgPool3D")
def average_pool_3d(
    input: Tensor,
    *,
    kernel_size: Any = 1,
    strides: Any = 1,
    pad_mode: Any = "valid",
    pad: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int = 0,
    data_format: Any = "NCDHW",
) -> Tensor:
    _need_channels_first(data_format)
    kernel, steps = _sizes(kernel_size, 3), _sizes(strides, 3)
    padding = _padding(input, kernel, steps, (1, 1, 1), pad_mode, pad)
    if any(padding) and not (count_include_pad or divisor_override):
        return _average(input, kernel, steps, padding)
    return F.avg_pool3d(F.pad(input, padding), kernel, steps, 0, ceil_mode, True, divisor_override or None)


@means("max_pool2d", OPS)
def max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    return_indices: bool = False,
    ceil_mode: bool = False,
) -> Any:
    pool = F.max_pool2d_with_indices if return_indices else F.max_pool2d
    return pool(input, kernel_size, stride, padding, dilation, ceil_mode)


@means("avg_pool2d", OPS)
def avg_pool2d(
    input: Tensor,
    kernel_size: Any = 1,
    stride: Any = 1,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int = 0,
) -> Tensor:
    return F.avg_pool2d(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override or None)


@means("avg_pool1d", OPS)
def avg_pool1d(
    input: Tensor,
    kernel_size: Any = 1,
    stride: Any = 1,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    return F.avg_pool1d(input, kernel_size, stride, padding, ceil_mode, count_include_pad)


@means("adaptive_avg_pool2d AdaptiveAvgPool2D", OPS, MINT_F)
def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    return F.adaptive_avg_pool2d(input, output_size)


@means("adaptive_avg_pool1d", OPS)
def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    return F.adaptive_avg_pool1d(input, output_size)


# -- norms -------------------------------------------------------------------------------------------------------------


@means("LayerNorm")
def layer_norm_primitive(
    input: Tensor,
    gamma: Tensor,
    beta: Tensor,
    begin_norm_axis: int = 1,
    begin_params_axis: int = 1,
    epsilon: float = 1e-7,
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, the means and the variances; nothing comes back through these."""
    dims = tuple(range(begin_norm_axis % input.dim(), input.dim()))
    mean = input.mean(dims, keepdim=True)
    variance = (input - mean).square().mean(dims, keepdim=True)
    result = (input - mean) / (variance + epsilon).sqrt() * gamma + beta
    return result, mean.detach(), variance.detach()


@means("layer_norm", OPS, MINT_F)
def layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return F.layer_norm(input, as_tuple(normalized_shape), weight, bias, eps)


@means("group_norm", OPS, MINT_F)
def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    return F.group_norm(input, num_groups, weight, bias, eps)


@means("BatchNorm", needs_context=True)
def batch_norm_primitive(
    context: Context,
    input: Tensor,
    gamma: Tensor,
    beta: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    *,
    is_training: bool = False,
    epsilon: float = 1e-5,
    momentum: float = 0.1,
    data_format: Any = "NCHW",
) -> tuple[Tensor, ...]:
    """The result and four that its backward keeps; while it trains, then the statistics that it has gathered."""
    _need_channels_first(data_format)
    shape = [1, -1] + [1] * (input.dim() - 2)
    if not is_training:
        mean, variance = running_mean.detach(), running_var.detach()
    else:
        dims = [dim for dim in range(input.dim()) if dim != 1]
        mean = input.mean(dims)
        variance = (input - mean.reshape(shape)).square().mean(dims)
    scaled = (input - mean.reshape(shape)) / (variance + epsilon).sqrt().reshape(shape)
    result = scaled * gamma.reshape(shape) + beta.reshape(shape)
    kept = tuple(pinned(context, number) for number in range(1, 5))
    if not is_training:
        return result, *kept
    return result, *kept, *gather_statistics(input, (mean, variance), (running_mean, running_var), momentum)


def gather_statistics(
    input: Tensor, found: tuple[Tensor, Tensor], before: tuple[Tensor, Tensor], momentum: float
) -> tuple[Tensor, Tensor]:
    """The moving mean and variance after a batch; the variance is that of a sample."""
    count = input.numel() // input.shape[1]
    mean, variance = (one.detach() for one in found)
    sample = variance * count / max(count - 1, 1)
    return before[0] * (1 - momentum) + mean * momentum, before[1] * (1 - momentum) + sample * momentum


@means("batch_norm", OPS)
def batch_norm(
    input: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor,
    bias: Tensor,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if training:
        raise NotImplementedError("a batch_norm that gathers statistics")
    return F.batch_norm(input, running_mean.detach(), running_var.detach(), weight, bias, False, momentum, eps)


# -- dropout -----------------------------------------------------------------------------------------------------------


@means("dropout", OPS, MINT_F, needs_context=True)
def dropout(context: Context, input: Tensor, p: float = 0.5, training: bool = True, *_: Any, **__: Any) -> Tensor:
    return drop(context, input, p, training).view_as(input)


@means("Dropout", needs_context=True)
def dropout_primitive(
    context: Context, input: Tensor, *, keep_prob: float = 0.5, Seed0: int = 0, Seed1: int = 0
) -> tuple[Tensor, Tensor]:
    return drop(context, input, 1 - keep_prob, keep_prob < 1).view_as(input), pinned(context, 1)
