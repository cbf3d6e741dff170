"""While MindSpore compiles or traces a function, the patches of the window are off: it must find its own functions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class Unpatched:
    """Takes patches away as long as any thread is inside a compiled region: one may begin inside another."""

    def __init__(self, patches: Sequence[Any], is_window_open: Callable[[], bool]) -> None:
        self._patches = patches
        self._is_window_open = is_window_open
        self._depth = 0
        self._lock = threading.Lock()

    def enter(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                for patch in reversed(self._patches):
                    patch.remove()

    def leave(self) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0 and self._is_window_open():
                for patch in self._patches:
                    patch.install()

    @contextmanager
    def region(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()
