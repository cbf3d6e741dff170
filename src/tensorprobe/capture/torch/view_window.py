"""Views that were changed in place: their gradients pass through the node of their base."""

from __future__ import annotations

import torch

_COPY_SLICES = "CopySlices"


class ViewWindow:
    """Where a view lies in its base."""

    __slots__ = ("_base_shape", "_base_stride", "_offset", "_shape", "_stride")

    def __init__(self, view: torch.Tensor, base: torch.Tensor) -> None:
        self._shape, self._stride = view.shape, view.stride()
        self._offset = view.storage_offset() - base.storage_offset()
        self._base_shape, self._base_stride = base.shape, base.stride()

    def cut(self, gradient: torch.Tensor) -> torch.Tensor:
        """The part of the base's gradient that belongs to the view."""
        with torch.no_grad():
            whole = gradient.new_empty_strided(self._base_shape, self._base_stride).copy_(gradient)
            return whole.as_strided(self._shape, self._stride, self._offset)


def view_changed_in_place(tensor: torch.Tensor, start: int) -> ViewWindow | None:
    """Where `tensor` lies in its base, if it is a view that a call since `start` has written to."""
    base = tensor._base if tensor._is_view() else None
    node = base.grad_fn if base is not None else None
    if base is None or node is None or type(node).__name__ != _COPY_SLICES or node._sequence_nr() < start:
        return None
    return ViewWindow(tensor, base)
