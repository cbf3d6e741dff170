"""Tells of backward passes. Nothing is computed, and nothing of a pass is held."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.patch import nothing, replace, run_all

_RUN = "_engine_run_backward"

Tell = Callable[[tuple[Any, ...], Mapping[str, Any]], None]


def watch_engine(tell: Tell) -> Undo:
    """Call `tell` after each outermost pass, with what the engine was given. Where torch has no such function, nobody
    is told."""
    original = getattr(torch.autograd, _RUN, None)
    if original is None:
        return nothing
    depth = 0

    @wraps(original)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        depth += 1
        try:
            return original(*args, **kwargs)
        finally:
            depth -= 1
            if not depth:
                tell(args, kwargs)

    undos = [replace(module, _RUN, run_backward) for module in (torch.autograd, torch.autograd.graph)]
    return lambda: run_all(undos)
