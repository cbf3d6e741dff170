"""What is put around images, and their size."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorprobe.replay.meaning.mindspore.table import FUNCTIONS, MINT_F, OPS, means


@means("pad", *FUNCTIONS[:1], MINT_F)
def pad(input: Tensor, padding: Any, mode: str = "constant", value: Any = None) -> Tensor:
    return F.pad(input, tuple(int(one) for one in padding), mode, value)


@means("Pad")
def pad_primitive(input: Tensor, *, paddings: Any) -> Tensor:
    return F.pad(input, [side for pair in reversed(paddings) for side in pair])


@means("MirrorPad")
def mirror_pad(input: Tensor, paddings: Tensor, mode: str = "REFLECT") -> Tensor:
    """Reflected at the last element, which is repeated where it is symmetric."""
    result = input
    for dim, (before, after) in enumerate(torch.as_tensor(paddings).tolist()):
        length, shift = result.shape[dim], 0 if mode == "SYMMETRIC" else 1
        places = [*range(before - 1 + shift, shift - 1, -1), *range(length)]
        places += [*range(length - 1 - shift, length - 1 - shift - after, -1)]
        result = result.index_select(dim, torch.tensor(places, device=input.device))
    return result


@means("interpolate", OPS)
def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
) -> Tensor:
    return F.interpolate(input, size, scale_factor, mode, align_corners, recompute_scale_factor)


@means("ResizeBilinearV2")
def resize_bilinear(input: Tensor, size: Any, align_corners: bool = False, half_pixel_centers: bool = False) -> Tensor:
    if not align_corners and not half_pixel_centers:
        raise NotImplementedError("pixels that are neither aligned at their corners nor counted by their centers")
    return F.interpolate(input, tuple(int(one) for one in size), mode="bilinear", align_corners=align_corners)


@means("ResizeNearestNeighborV2")
def resize_nearest(input: Tensor, size: Any, align_corners: bool = False, half_pixel_centers: bool = False) -> Tensor:
    if align_corners or half_pixel_centers:
        raise NotImplementedError("pixels aligned at their corners, or counted by their centers")
    return F.interpolate(input, tuple(int(one) for one in size), mode="nearest")
