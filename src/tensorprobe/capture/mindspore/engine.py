"""Which backward pass this thread is in. MindSpore says so from 2.9; before, it is known from the first hook of a pass
until its end."""

from __future__ import annotations

from collections.abc import Callable

from tensorprobe.capture.mindspore.executor import executor

NO_PASS = -1


class NotedPass:
    """The pass that is running, as the hooks see it: one inside another counts as the same."""

    def __init__(self) -> None:
        self._count = 0
        self._current = NO_PASS

    def __call__(self) -> int:
        return self._current

    def begin(self) -> None:
        if self._current == NO_PASS:
            self._current, self._count = self._count, self._count + 1

    def end(self) -> None:
        self._current = NO_PASS


_noted = None if hasattr(executor, "get_current_autodiff_engine_id") else NotedPass()
current_pass: Callable[[], int] = executor.get_current_autodiff_engine_id if _noted is None else _noted
"""The number of the backward pass that this thread is in; NO_PASS outside."""


def is_in_backward() -> bool:
    """Is this thread inside a backward pass?"""
    return current_pass() != NO_PASS


def enter_pass() -> int:
    """A hook has run: the number of its pass."""
    if _noted is not None:
        _noted.begin()
    return current_pass()


def leave_pass() -> None:
    """The end of a pass has been noticed."""
    if _noted is not None:
        _noted.end()
