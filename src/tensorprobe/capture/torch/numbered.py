"""torch tensors for `tensorprobe.save` and `tensorprobe.save_grad`. No hook is left on the user's tensors."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from tensorprobe.capture.numbered import Content, LeafWatches, Receive, TensorKind
from tensorprobe.capture.torch.content import missing_content, peel, plain_content
from tensorprobe.capture.torch.framework import current_rank
from tensorprobe.capture.torch.hiding import hidden, isolated
from tensorprobe.capture.torch.npy_file import as_numpy_kind
from tensorprobe.capture.torch.tensor_copy import TensorCopy
from tensorprobe.capture.torch.tensor_hook import hook_gradient


def copy_content(tensor: torch.Tensor) -> Content:
    """A copy of the elements, on the device of the tensor. What numpy has no dtype for (bfloat16, float8, halves of
    complex numbers) is widened, which loses nothing; sparse is made dense."""
    with isolated(), torch.no_grad():  # no call of the user's
        bare = peel(tensor)
        reason = missing_content(bare)
        if reason is not None:
            raise TypeError(reason)
        copy = as_numpy_kind(plain_content(bare)).clone(memory_format=torch.contiguous_format)
        if copy.device.type == "cpu":
            array = copy.numpy()
            return Content(copy.nbytes, lambda: array)
        waiting = TensorCopy(copy)
        return Content(copy.nbytes, lambda: waiting.to_host().numpy())


def describe(tensor: torch.Tensor) -> str:
    with hidden():
        return repr(tensor)


def watch_gradient(tensor: torch.Tensor, receive: Receive, leaves: LeafWatches, name: Hashable) -> bool:
    """Have each gradient received when it comes; False if none will. A leaf that lives on is watched once a call."""
    with hidden():
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
