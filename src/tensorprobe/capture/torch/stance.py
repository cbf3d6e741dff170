"""`compiled: "eager"`: while a window is open, what torch.compile has compiled runs as it was written.

The switch is torch's own (`torch.compiler.set_stance`, since 2.6). It decides at each call whether compiled code is
used, so that compiled code and its caches stay as they are. Calls that run eagerly may round otherwise than compiled
ones: who asks for this asks for that.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.patch import nothing
from tensorprobe.errors import ConfigError

_EAGER = "force_eager"


def check_stance() -> None:
    """Has this torch the switch?"""
    if not hasattr(torch.compiler, "set_stance"):
        raise ConfigError(
            f'compiled "eager" needs torch.compiler.set_stance, which torch {torch.__version__} does not have: use '
            "torch 2.6 or newer, or start the program with TORCHDYNAMO_DISABLE=1, which compiles nothing at all"
        )


def run_eagerly() -> Undo:
    """From now on compiled functions run as they were written; what is returned ends that."""
    from torch._dynamo import eval_frame

    before = _stance_of(eval_frame)
    if getattr(before, "stance", None) == _EAGER:
        return nothing
    switch: Any = torch.compiler.set_stance(_EAGER)  # type: ignore[no-untyped-call,unused-ignore]
    ours = _stance_of(eval_frame)

    def undo() -> None:
        if _stance_of(eval_frame) is ours:
            switch.__exit__(None, None, None)
            return
        # The program has chosen one meanwhile, and may go back to ours later: that is the one before then.
        for field in fields(ours):
            setattr(ours, field.name, getattr(before, field.name))

    return undo


def _stance_of(eval_frame: Any) -> Any:
    return getattr(eval_frame, "_stance", None)
