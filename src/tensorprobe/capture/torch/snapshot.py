"""Tensors as arrays, and their gradients, for `save` and `save_grad`."""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import get_gradient_edge

from tensorprobe.capture.snapshot import Snapshots, check_name
from tensorprobe.capture.torch.reader import plain_content
from tensorprobe.errors import UsageError

logger = logging.getLogger("tensorprobe")

_said: set[str] = set()


def array_of(tensor: torch.Tensor) -> tuple[np.ndarray[Any, Any], str]:
    """The content on the host. bfloat16 and float8 have no numpy dtype: their bits are kept, as ml_dtypes writes
    them."""
    content = plain_content(tensor)
    if content.layout is not torch.strided:
        content = content.to_dense()
    if content.is_quantized:
        content = content.dequantize()
    content = content.cpu().contiguous()
    dtype = str(content.dtype).removeprefix("torch.")
    try:
        array = content.numpy()
    except TypeError:
        bits = content.view(torch.uint8 if content.element_size() == 1 else torch.int16)
        array = bits.numpy().view(f"V{content.element_size()}")
    return array, dtype


def watch_snapshot_gradient(
    snapshots: Snapshots, save_dir: str | os.PathLike[str], name: str, data: torch.Tensor
) -> torch.Tensor:
    """Save the gradient of `data` when it comes; `data` itself is returned, untouched."""
    check_name(name)
    if not isinstance(data, torch.Tensor):
        raise UsageError(f"save_grad(save_dir, name, data) takes a torch.Tensor, not {type(data).__name__}")
    if not data.requires_grad or not torch.is_grad_enabled():
        _say_once(name)
        return data

    def save_gradient(gradient: torch.Tensor) -> None:
        try:
            with torch._C.DisableTorchFunction():
                snapshots.save(save_dir, f"{name}_grad", gradient)
        except Exception as error:
            logger.error("the gradient %s could not be saved (%s); training goes on", name, error)

    if data.is_leaf:
        data.register_hook(save_gradient)
    else:
        edge = get_gradient_edge(data)
        edge.node.register_prehook(lambda gradients: _pass(save_gradient, gradients[edge_number]))
        edge_number = edge.output_nr
    return data


def _pass(save_gradient: Any, gradient: torch.Tensor | None) -> None:
    if gradient is not None:
        save_gradient(gradient)


def _say_once(name: str) -> None:
    if name not in _said:
        _said.add(name)
        logger.warning("save_grad(%r): the tensor needs no gradient here, so none will be saved", name)
