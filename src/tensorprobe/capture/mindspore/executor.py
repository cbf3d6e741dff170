"""MindSpore computes behind the program's back: what has been asked for, and whether it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from mindspore.graph.api import _pynative_executor
except ImportError:  # before MindSpore 2.9
    from mindspore.common.api import _pynative_executor

executor: Any = _pynative_executor
_enable_grad: Callable[[], bool] = getattr(executor, "enable_grad", lambda: True)


def wait_for_results() -> None:
    """Return when everything that was asked for so far is computed, compiled graphs included."""
    executor.sync()


def is_recording_gradients() -> bool:
    """Whether what is computed now will be differentiated."""
    return bool(executor.requires_grad())


def is_grad_switched_off() -> bool:
    """Is this inside of `no_grad`?"""
    return not _enable_grad()


def after_backward(function: Callable[[], None]) -> None:
    """Call it when the backward pass that runs now is over. Removing a hook while it runs kills the process (2.10)."""
    executor.queue_backward_final_callback(function)
