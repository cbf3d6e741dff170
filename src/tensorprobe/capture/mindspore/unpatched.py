"""While MindSpore compiles or traces a function, the patches of the window are off: it must find its own functions."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tensorprobe.capture.mindspore.call_patch import CallRunner


class Unpatched:
    """Takes patches away as long as any thread is inside a compiled region: one may begin inside another."""

    def __init__(self, calls: CallRunner, patches: Sequence[Any]) -> None:
        self._calls = calls
        self._patches = patches
        self._depth = 0
        self._lock = threading.Lock()

    def enter(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                for patch in reversed(self._patches):
                    patch.remove()
                self._calls.gradients.hide_parameter_hooks()

    def leave(self) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0 and self._calls.is_active:
                self._calls.gradients.show_parameter_hooks()
                for patch in self._patches:
                    patch.install()

    @contextmanager
    def region(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()
