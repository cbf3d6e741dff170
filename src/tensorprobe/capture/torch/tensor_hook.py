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
    remove: Undo = tensor.register_hook(take).remove
    if not is_bare:
        return remove
    if not tensor.is_leaf:
        tensor._backward_hooks = None  # the node that made the tensor has the hook: nothing is left on the tensor
        return remove

    def undo() -> None:
        remove()
        if torch._C._current_graph_task_id() == -1:
            _make_bare(tensor)
        else:  # the hooks of the tensor may be running
            torch.autograd.Variable._execution_engine.queue_callback(lambda: _make_bare(tensor))

    return undo


def _make_bare(tensor: torch.Tensor) -> None:
    """Take away the table of hooks too, unless others have put some in."""
    if tensor._backward_hooks is not None and not tensor._backward_hooks:
        tensor._backward_hooks = None
