"""torch tensors for `tensorprobe.save` and `tensorprobe.save_grad`. No hook is left on the user's tensors."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from tensorprobe.capture.numbered import Content, LeafWatches, Receive, TensorKind
from tensorprobe.capture.torch.content import missing_content, plain_content
from tensorprobe.capture.torch.framework import current_rank
from tensorprobe.capture.torch.reader import TensorCopy, peel, unseen_by_modes
from tensorprobe.capture.torch.tensor_hook import hook_gradient

_IN_NUMPY = frozenset(
    {
        *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint16, torch.uint32, torch.uint64),
    }
)


def copy_content(tensor: torch.Tensor) -> Content:
    """A copy of the elements, on the device of the tensor. What numpy has no dtype for (bfloat16, float8, halves of
    complex numbers) is widened, which loses nothing; sparse is made dense."""
    with unseen_by_modes(), torch._C.DisableTorchFunction(), torch.no_grad():  # no call of the user's
        bare = peel(tensor)
        reason = missing_content(bare)
        if reason is not None:
            raise TypeError(reason)
        content = plain_content(bare)
        if content.layout is not torch.strided:
            content = content.to_dense()
        if content.is_quantized:
            content = content.dequantize()
        if content.dtype not in _IN_NUMPY:
            content = content.to(torch.complex64 if content.is_complex() else torch.float32)
        copy = content.clone(memory_format=torch.contiguous_format)
        if copy.device.type == "cpu":
            array = copy.numpy()
            return Content(copy.nbytes, lambda: array)
        waiting = TensorCopy(copy)
        return Content(copy.nbytes, lambda: waiting.to_host().numpy())


def describe(tensor: torch.Tensor) -> str:
    with torch._C.DisableTorchFunction():
        return repr(tensor)


def watch_gradient(tensor: torch.Tensor, receive: Receive, leaves: LeafWatches, name: Hashable) -> bool:
    """Have each gradient received when it comes; False if none will. A leaf that lives on is watched once a call."""
    with torch._C.DisableTorchFunction():
        if not tensor.requires_grad or not torch.is_grad_enabled():
            return False
        if not tensor.is_leaf:
            hook_gradient(tensor, lambda gradient: _pass_on(gradient, receive))
            return True
        watch = leaves.wait((id(tensor), name))
        if watch is None:
            return True

        def receive_one(gradient: torch.Tensor | None) -> None:
            if watch.note_gradient():
                _pass_on(gradient, receive)
            watch.end_if_done()

        watch.held = tensor
        watch.undo = hook_gradient(tensor, receive_one)
    return True


def _pass_on(gradient: torch.Tensor | None, receive: Receive) -> None:
    if gradient is not None:
        receive(gradient)


def finish() -> None:
    """The thread that writes waits for each value by itself."""


kind = TensorKind(
    types=(torch.Tensor,),
    differentiable=torch.Tensor,
    copy_content=copy_content,
    describe=describe,
    current_rank=current_rank,
    takes_part=lambda: True,
    watch_gradient=watch_gradient,
    finish=finish,
)
