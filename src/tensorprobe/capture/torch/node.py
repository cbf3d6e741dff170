"""The node of the graph of gradients that made a tensor."""

from __future__ import annotations

from typing import Any

import torch

AccumulateGrad: Any = torch._C._functions.AccumulateGrad
"""The node that adds to the `.grad` of a leaf."""


def find_node(tensor: torch.Tensor) -> Any:
    """Its `grad_fn`. None for a view that was taken without gradients and has been written to since, or its base: torch
    refuses to say, and no gradient goes through it."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def is_leaf(tensor: torch.Tensor) -> bool:
    """Does a gradient that comes to it stay there? Not at a view that torch says nothing of: none comes."""
    try:
        return bool(tensor.is_leaf)
    except RuntimeError:
        return False
