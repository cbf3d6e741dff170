"""The autograd Functions of the program, in the backward: which of them is running?"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from tensorprobe.capture.torch.node import find_node

_NAME = "tensorprobe function"
"""The key in a node's metadata under which the name of its backward record stands."""
_current_node = getattr(torch._C, "_current_autograd_node", None)


def node_of(output: Any) -> Any:
    """The node of a Function, by what it returned."""
    for tensor in output if isinstance(output, (tuple, list)) else (output,):
        node = find_node(tensor) if isinstance(tensor, torch.Tensor) else None
        if isinstance(node, BackwardCFunction):
            return node
    return None


def name_node(output: Any, backward_name: str, generation: int) -> None:
    """A Function has returned `output`: what its backward calls will belong to this record."""
    node = node_of(output)
    if node is not None:
        node.metadata[_NAME] = (generation, backward_name)


def find_running(generation: int) -> str | None:
    """The backward record of the Function whose backward is running in this thread."""
    node = _current_node() if _current_node is not None else None
    found = node.metadata.get(_NAME) if isinstance(node, BackwardCFunction) else None
    return found[1] if found is not None and found[0] == generation else None
