"""Hooks on the gradients of the user's tensors.

A hook of a node (`register_prehook`) is not called where the gradient of its own tensor is what is asked for,
`torch.autograd.grad(loss, x)`: the node does not run then. Hooks of a tensor are called in every case.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tensorprobe.capture.framework import Undo


def hook_gradient(tensor: torch.Tensor, take: Callable[[torch.Tensor | None], None]) -> Undo:
    """Have `take` called with the whole gradient of a tensor as it is now, whatever is written into it later."""
    is_bare = tensor._backward_hooks is None
    undo: Undo = tensor.register_hook(take).remove
    if is_bare and not tensor.is_leaf:
        tensor._backward_hooks = None  # the node that made the tensor has the hook: nothing is left on the tensor
    return undo
