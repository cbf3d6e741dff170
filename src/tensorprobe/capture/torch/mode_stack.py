"""The stack of modes that the calls of a thread pass through. Ours may be anywhere in it: the program has its own."""

from __future__ import annotations

from typing import Any

import torch

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.patch import nothing


def is_on_stack(mode: Any) -> bool:
    """Do the calls of this thread pass through the mode?"""
    return any(torch._C._get_function_stack_at(place) is mode for place in range(torch._C._len_torch_function_stack()))


def remove_mode(mode: Any) -> Undo:
    """Take one mode off the stack of this thread, wherever it is in it; the undo puts it back to its place."""
    if not is_on_stack(mode):
        return nothing
    above: list[Any] = []
    while (top := torch._C._pop_torch_function_stack()) is not mode:
        above.append(top)
    for other in reversed(above):
        torch._C._push_on_torch_function_stack(other)
    depth = len(above)

    def restore() -> None:
        over = [torch._C._pop_torch_function_stack() for _ in range(min(depth, torch._C._len_torch_function_stack()))]
        torch._C._push_on_torch_function_stack(mode)
        for other in reversed(over):
            torch._C._push_on_torch_function_stack(other)

    return restore
