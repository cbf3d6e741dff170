"""The stack of modes that the calls of a thread pass through. Ours may be anywhere in it: the program has its own."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.patch import nothing


def is_on_stack(mode: Any) -> bool:
    """Do the calls of this thread pass through the mode?"""
    return any(torch._C._get_function_stack_at(place) is mode for place in range(torch._C._len_torch_function_stack()))


def enter_below(mode: Any, others: Sequence[weakref.ref[Any]]) -> None:
    """Put a mode on the stack of this thread: below these, where they are the topmost. Leaving a mode takes off the
    topmost one, whosever it is, so that ours must not come above one that the program will leave first."""
    depth, size = len(others), torch._C._len_torch_function_stack()
    tops = [torch._C._get_function_stack_at(place) for place in range(size - depth, size)] if depth <= size else []
    is_found = len(tops) == depth and all(other() is top for other, top in zip(others, tops, strict=True))
    above = tops if is_found else []
    for _ in above:
        torch._C._pop_torch_function_stack()
    for each in (mode, *above):
        torch._C._push_on_torch_function_stack(each)


def modes_above(mode: Any) -> list[weakref.ref[Any]]:
    """The modes that were entered later than this one, lowest first; none where it is not on the stack."""
    stack = [torch._C._get_function_stack_at(place) for place in range(torch._C._len_torch_function_stack())]
    places = [place for place, each in enumerate(stack) if each is mode]
    return [weakref.ref(each) for each in stack[places[-1] + 1 :]] if places else []


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
