"""MindSpore tensors for `tensorprobe.save` and `tensorprobe.save_grad`. Nothing is left on the user's tensors."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from mindspore import COOTensor, CSRTensor, Tensor

from tensorprobe.capture.mindspore.content import missing_content, wait_for
from tensorprobe.capture.mindspore.executor import after_backward, is_recording_gradients, wait_for_results
from tensorprobe.capture.mindspore.hiding import hidden
from tensorprobe.capture.mindspore.rank import current_rank, is_scheduler
from tensorprobe.capture.mindspore.tensor_hook import hook_tensor
from tensorprobe.capture.numbered import Array, Content, LeafWatches, Receive, TensorKind
from tensorprobe.model.dtype import short_dtype
from tensorprobe.store.narrow_float import item_bytes, widen_bits


def copy_content(tensor: Any) -> Content:
    """A copy of the elements on the host. What numpy has no dtype for (bfloat16, float8) is widened, which loses
    nothing; sparse is made dense."""
    with hidden():  # what is computed here is no call of the user's
        if isinstance(tensor, COOTensor):
            array = _dense_of_coordinates(tensor)
        elif isinstance(tensor, CSRTensor):
            array = _dense_of_rows(tensor)
        else:
            array = _array_of(tensor)
    return Content(array.nbytes, lambda: array)


def describe(tensor: Any) -> str:
    with hidden():
        return repr(tensor)


def watch_gradient(tensor: Tensor, receive: Receive, leaves: LeafWatches, name: Hashable) -> bool:
    """Have each gradient received when it comes; False if none will. A leaf that lives on is watched once a call."""
    if not is_recording_gradients() or not tensor._requires_grad:
        return False
    with hidden():
        node = tensor._grad_node
        if node is not None and not node.is_leaf():
            hook_tensor(tensor, lambda gradient: _pass_on(gradient, receive))
            return True
        watch = leaves.wait((id(tensor), name))
        if watch is None:
            return True

        def receive_one(gradient: Tensor | None) -> None:
            if watch.note_gradient():
                _pass_on(gradient, receive)
            after_backward(watch.end_if_done)

        watch.held = tensor
        watch.undo = hook_tensor(tensor, receive_one).remove
    return True


def _pass_on(gradient: Tensor | None, receive: Receive) -> None:
    if gradient is not None:
        receive(gradient)


def _array_of(tensor: Tensor) -> Array:
    wait_for(tensor)
    dtype = short_dtype(str(tensor.dtype))
    if item_bytes(dtype) is not None:
        bits = np.frombuffer(tensor.get_bytes(), f"u{item_bytes(dtype)}")
        return widen_bits(bits, dtype).reshape(tensor.shape)
    reason = missing_content(tensor)
    if reason is not None:
        raise TypeError(reason)
    return np.array(tensor.asnumpy(), order="C")  # a copy: asnumpy shows the memory itself


def _dense_of_coordinates(tensor: COOTensor) -> Array:
    values = _array_of(tensor.values)
    dense: Array = np.zeros(tensor.shape, values.dtype)
    np.add.at(dense, tuple(_array_of(tensor.indices).T), values)
    return dense


def _dense_of_rows(tensor: CSRTensor) -> Array:
    values, bounds = _array_of(tensor.values), _array_of(tensor.indptr)
    dense: Array = np.zeros(tensor.shape, values.dtype)
    rows = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    np.add.at(dense, (rows, _array_of(tensor.indices)), values)
    return dense


kind = TensorKind(
    types=(Tensor, COOTensor, CSRTensor),
    differentiable=Tensor,
    copy_content=copy_content,
    describe=describe,
    current_rank=current_rank,
    takes_part=lambda: not is_scheduler(),
    watch_gradient=watch_gradient,
    finish=wait_for_results,
)
