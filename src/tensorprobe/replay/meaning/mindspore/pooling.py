"""Poolings that the layers do not use, and what moves the elements of images."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorprobe.replay.meaning.mindspore.image import interpolate
from tensorprobe.replay.meaning.mindspore.table import METHOD, MINT_F, OPS, add, as_tuple, means

add(OPS, "upsample", interpolate)


@means("upsample", MINT_F)
def upsample_mint(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None
) -> Tensor:
    return F.interpolate(input, size, scale_factor, mode, align_corners)


@means("GridSampler2D GridSampler3D")
def grid_sampler(
    input: Tensor,
    grid: Tensor,
    interpolation_mode: Any = "bilinear",
    padding_mode: Any = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """A kernel has numbers for the modes."""
    mode = {0: "bilinear", 1: "nearest"}.get(interpolation_mode, interpolation_mode)
    padding = {0: "zeros", 1: "border", 2: "reflection"}.get(padding_mode, padding_mode)
    return F.grid_sample(input, grid, str(mode), str(padding), align_corners)


@means("DepthToSpace")
def depth_to_space(input: Tensor, block_size: int) -> Tensor:
    """As torch shuffles pixels, with the block in front of the channels."""
    batch, depth, height, width = input.shape
    parts = input.reshape(batch, block_size, block_size, depth // block_size**2, height, width)
    return parts.permute(0, 3, 4, 1, 5, 2).reshape(batch, -1, height * block_size, width * block_size)


@means("SpaceToDepth")
def space_to_depth(input: Tensor, block_size: int) -> Tensor:
    batch, depth, height, width = input.shape
    parts = input.reshape(batch, depth, height // block_size, block_size, width // block_size, block_size)
    return parts.permute(0, 3, 5, 1, 2, 4).reshape(batch, -1, height // block_size, width // block_size)


@means("unfold", OPS, METHOD)
def unfold(input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    return F.unfold(input, kernel_size, dilation, padding, stride)


@means("fold", OPS)
def fold(
    input: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    size = output_size.tolist() if isinstance(output_size, Tensor) else output_size
    return F.fold(input, tuple(int(one) for one in size), kernel_size, dilation, padding, stride)


@means("max_pool3d", OPS)
def max_pool3d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    pool = F.max_pool3d_with_indices if return_indices else F.max_pool3d
    return pool(input, kernel_size, stride, padding, dilation, ceil_mode)


@means("avg_pool3d", OPS)
def avg_pool3d(
    input: Tensor,
    kernel_size: Any = 1,
    stride: Any = 1,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int = 0,
) -> Tensor:
    return F.avg_pool3d(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override or None)


def _sizes(input: Tensor, output_size: Any, count: int) -> tuple[int, ...]:
    sizes = as_tuple(output_size) * (1 if isinstance(output_size, (tuple, list)) else count)
    return tuple(length if one is None else one for one, length in zip(sizes, input.shape[-count:], strict=True))


@means("adaptive_max_pool1d", OPS)
def adaptive_max_pool1d(input: Tensor, output_size: int) -> Tensor:
    return F.adaptive_max_pool1d(input, output_size)


@means("adaptive_max_pool2d", OPS, MINT_F)
def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    pool = F.adaptive_max_pool2d_with_indices if return_indices else F.adaptive_max_pool2d
    return pool(input, _sizes(input, output_size, 2))


@means("adaptive_max_pool3d", OPS)
def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    pool = F.adaptive_max_pool3d_with_indices if return_indices else F.adaptive_max_pool3d
    return pool(input, _sizes(input, output_size, 3))


@means("adaptive_avg_pool3d", OPS)
def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    return F.adaptive_avg_pool3d(input, _sizes(input, output_size, 3))


@means("lp_pool1d", OPS)
def lp_pool1d(input: Tensor, norm_type: Any, kernel_size: int, stride: Any = None, ceil_mode: bool = False) -> Tensor:
    return F.lp_pool1d(input, float(norm_type), kernel_size, stride, ceil_mode)


@means("lp_pool2d", OPS)
def lp_pool2d(input: Tensor, norm_type: Any, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Tensor:
    return F.lp_pool2d(input, float(norm_type), kernel_size, stride, ceil_mode)


@means("lrn", OPS)
def local_response_norm(
    input: Tensor,
    depth_radius: int = 5,
    bias: float = 1.0,
    alpha: float = 1.0,
    beta: float = 0.5,
    norm_region: str = "ACROSS_CHANNELS",
) -> Tensor:
    """The squares of the channels around each are added up; torch's takes their mean."""
    padded = F.pad(input.square().movedim(1, -1), (depth_radius, depth_radius))
    sums = padded.unfold(-1, 2 * depth_radius + 1, 1).sum(-1).movedim(-1, 1)
    return input / torch.pow(bias + alpha * sums, beta)
