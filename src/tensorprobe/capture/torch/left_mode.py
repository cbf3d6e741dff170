"""A mode that another thread could not take away.

Modes belong to their thread: a stop in another one leaves its mode, which does nothing any more, on the stack of the
thread that started. While a mode handles a call, torch has it off the stack and puts it back afterwards, so that it
cannot remove itself then. The next thing that Python tells a profiler comes after that: a function is entered or left.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch


def remove_after_this_call(mode: Any) -> None:
    """Take `mode` off the stack of this thread as soon as it is on it again; where a profiler runs, it stays."""
    if sys.getprofile() is not None:
        return

    def look(frame: FrameType, event: str, argument: object) -> None:
        if _remove(mode):
            sys.setprofile(None)

    sys.setprofile(look)


def _remove(mode: Any) -> bool:
    depth = torch._C._len_torch_function_stack()
    if not any(torch._C._get_function_stack_at(place) is mode for place in range(depth)):
        return False
    above = []
    while (top := torch._C._pop_torch_function_stack()) is not mode:
        above.append(top)
    for other in reversed(above):
        torch._C._push_on_torch_function_stack(other)
    return True
