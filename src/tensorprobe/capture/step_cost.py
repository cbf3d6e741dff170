"""What a step with tensors writes, said after the first one: before a long run has filled a disk."""

from __future__ import annotations

import logging

from tensorprobe.capture.disk_limit import DiskLimit
from tensorprobe.config import CaptureConfig
from tensorprobe.config.size import show_size
from tensorprobe.model.count import count_noun

logger = logging.getLogger("tensorprobe")


class StepCost:
    """Said once per session."""

    def __init__(self, config: CaptureConfig, limit: DiskLimit) -> None:
        self._config = config
        self._limit = limit
        self._is_said = config.task not in ("tensor", "replay") or config.level == "api_dump"

    def say(self, step: int, size_bytes: int, record_count: int) -> None:
        """The first step is over."""
        if self._is_said or self._limit.is_reached:
            return
        self._is_said = True
        free_bytes = self._limit.free_bytes()
        free = "" if free_bytes is None else f"; {show_size(free_bytes)} are free"
        logger.info(
            "step %d wrote %s in %s%s%s",
            step,
            show_size(size_bytes),
            count_noun(record_count, "record"),
            self._describe_rest(step, size_bytes),
            free,
        )

    def _describe_rest(self, step: int, size_bytes: int) -> str:
        steps, ring = self._config.step, self._config.flight_recorder
        if ring is not None:
            most = show_size((ring.steps + 1) * size_bytes)
            return f". The flight recorder has up to {ring.steps + 1:,} such steps on disk, about {most}"
        if not isinstance(steps, frozenset) or not steps:
            return ", and each further step needs about as much"
        rest = sum(number > step for number in steps)
        needs = count_noun(rest, "configured step after it needs", "configured steps after it need")
        return f". The {needs} about {show_size(rest * size_bytes)}" if rest else ""
