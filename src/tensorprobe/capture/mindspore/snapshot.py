"""Tensors as arrays, and their gradients, for `save` and `save_grad` in PyNative. Nothing is left on the user's
tensors."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from mindspore import Tensor

from tensorprobe.capture.mindspore.executor import after_backward, is_recording_gradients
from tensorprobe.capture.mindspore.hiding import hidden
from tensorprobe.capture.snapshot import Snapshots, Watch


def array_of(tensor: Tensor) -> tuple[np.ndarray[Any, Any], str]:
    """The content on the host. bfloat16 has no numpy dtype: its bits are kept, as ml_dtypes writes them."""
    with hidden():  # what is computed here is no call of the user's
        array = tensor.asnumpy()
    dtype = str(array.dtype)
    if array.dtype.kind == "V" or dtype == "bfloat16":
        array = array.view(f"V{array.dtype.itemsize}")
    return array, dtype


def watch_snapshot_gradient(snapshots: Snapshots, save_dir: str | os.PathLike[str], name: str, data: Tensor) -> None:
    """Save the gradient of `data` when it comes: the next one, where `data` is a leaf that lives on."""
    if not is_recording_gradients() or not data._requires_grad:
        snapshots.say_once(f"save_grad({name!r}): the tensor needs no gradient here, so none will be saved")
        return
    watch = Watch()

    def receive(gradient: Tensor | None) -> None:
        if gradient is not None:
            snapshots.save(save_dir, f"{name}_grad", gradient)
        if watch.undo is not None:
            after_backward(lambda: snapshots.let_go(watch))

    with hidden():
        handle = data.register_hook(receive)
        node = data._grad_node
    if node is None or node.is_leaf():  # its hooks are called by every backward that it has a part in
        watch.held, watch.undo = data, handle.remove
        snapshots.hold(watch)
