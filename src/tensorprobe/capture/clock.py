"""How long the windows of a step took."""

from __future__ import annotations

import time


class Clock:
    """How long the windows of a step took; without a window, how long it is since the step began."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._step_began = time.perf_counter()
        self._window_began: float | None = None
        self._window_seconds = 0.0

    def start(self) -> None:
        self._window_began = time.perf_counter()

    def stop(self) -> None:
        if self._window_began is not None:
            self._window_seconds += time.perf_counter() - self._window_began
            self._window_began = None

    @property
    def seconds(self) -> float:
        return self._window_seconds or time.perf_counter() - self._step_began
