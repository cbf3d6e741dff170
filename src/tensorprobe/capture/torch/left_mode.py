"""A mode that another thread could not take away.

Modes belong to their thread: a stop in another one leaves its mode, which does nothing any more, on the stack of the
thread that started. While a mode handles a call, torch has it off the stack and puts it back afterwards, so that it
cannot remove itself then. The next thing that Python tells a profiler comes after that: a function is entered or left.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from tensorprobe.capture.torch.mode_stack import is_on_stack, remove_mode


def remove_after_this_call(mode: Any) -> None:
    """Take `mode` off the stack of this thread as soon as it is on it again; where a profiler runs, it stays."""
    if sys.getprofile() is not None:
        return

    def look(frame: FrameType, event: str, argument: object) -> None:
        if is_on_stack(mode):
            remove_mode(mode)
            sys.setprofile(None)

    sys.setprofile(look)
