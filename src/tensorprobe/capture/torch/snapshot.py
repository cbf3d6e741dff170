"""Tensors as arrays, and their gradients, for `save` and `save_grad`. No hook is left on the user's tensors."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from tensorprobe.capture.snapshot import Snapshots, Watch
from tensorprobe.capture.torch.content import plain_content
from tensorprobe.capture.torch.hiding import hidden
from tensorprobe.capture.torch.tensor_hook import hook_gradient

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def array_of(tensor: torch.Tensor) -> tuple[np.ndarray[Any, Any], str]:
    """The content on the host. bfloat16 and float8 have no numpy dtype: their bits are kept, as ml_dtypes writes
    them."""
    with hidden():  # what is computed here is no call of the user's
        content = plain_content(tensor)
        if content.layout is not torch.strided:
            content = content.to_dense()
        if content.is_quantized:
            content = content.dequantize()
        content = content.to("cpu", copy=True).contiguous()  # numpy() on the user's own memory would forbid resizing it
        dtype = str(content.dtype).removeprefix("torch.")
        try:
            array = content.numpy()
        except TypeError:
            array = content.view(_BITS[content.element_size()]).numpy().view(f"V{content.element_size()}")
    return array, dtype


def watch_snapshot_gradient(
    snapshots: Snapshots, save_dir: str | os.PathLike[str], name: str, data: torch.Tensor
) -> None:
    """Save the gradient of `data` when it comes: the next one, where `data` is a leaf that lives on."""
    with hidden():
        if not data.requires_grad or not torch.is_grad_enabled():
            snapshots.say_once(f"save_grad({name!r}): the tensor needs no gradient here, so none will be saved")
            return
        watch = Watch()

        def receive(gradient: torch.Tensor | None) -> None:
            if gradient is not None:
                snapshots.save(save_dir, f"{name}_grad", gradient)
            if watch.undo is not None:
                snapshots.let_go(watch)

        undo = hook_gradient(data, receive)
        if data.is_leaf:  # its hooks are called by every backward that it has a part in
            watch.held, watch.undo = data, undo
            snapshots.hold(watch)
