"""The session of a program that does not know of it: its models are what it calls outermost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorprobe.capture.framework import Framework
from tensorprobe.capture.root import Roots
from tensorprobe.capture.session import Session
from tensorprobe.capture.sink import Sink
from tensorprobe.config import CaptureConfig
from tensorprobe.config.number_range import is_past


class LaunchedSession(Session):
    """A session whose models are found, and which is silent until its end."""

    def __init__(self, config: CaptureConfig, framework: Framework, roots: Roots) -> None:
        super().__init__(config, framework)
        self.recorder.roots = roots
        self._roots = roots
        self.recorded_steps: list[int] = []
        self.unwritten_steps: list[int] = []
        """Those of which nothing is on disk, because it could not be written."""
        self.recorded_rank: int | None = None
        """Asked while the program runs: at its end MindSpore does not know it any more."""

    @property
    def wants_step(self) -> bool:
        """Is the present step to be recorded?"""
        return self._is_selected()

    @property
    def wants_more(self) -> bool:
        """Is there a step to come, or the present one, that is to be recorded?"""
        return not self.is_closed and not is_past(self._step, self.config.step)

    def _check_start(self, model: Any) -> Sequence[tuple[str, Any]]:
        return self._roots.models()

    def _report(self, sink: Sink) -> None:
        self.recorded_rank = self.framework.rank()
        steps = self.recorded_steps if sink.writer.has_records or not sink.lost_count else self.unwritten_steps
        steps.append(self._step)
