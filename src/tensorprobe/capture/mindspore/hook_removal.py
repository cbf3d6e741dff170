"""How hooks on the user's tensors are taken back: not while a backward pass runs, because MindSpore crashes when the
hook of a tensor removes itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensorprobe.capture.mindspore.engine import is_in_backward


class HookRemoval:
    """The hooks that nobody needs any more."""

    def __init__(self) -> None:
        self._spent: list[Any] = []

    def discard(self, handles: Iterable[Any]) -> None:
        """Remove hooks: now, or when the backward pass has ended. Until then they must do nothing by themselves."""
        self._spent.extend(handles)
        if not is_in_backward():
            self.remove()

    def remove(self) -> None:
        """The backward pass has ended, or there is none."""
        spent, self._spent = self._spent, []
        for handle in spent:
            handle.remove()
