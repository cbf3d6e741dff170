"""What is said when a step is over: how much was recorded, where it is, and what to do next."""

from __future__ import annotations

import logging
import shlex

from tensorprobe.capture.clock import Clock
from tensorprobe.capture.coverage import Coverage
from tensorprobe.capture.destination import Destination
from tensorprobe.capture.failure import Failures
from tensorprobe.capture.sink import Sink
from tensorprobe.model.count import count_noun
from tensorprobe.model.unseen import advise

logger = logging.getLogger("tensorprobe")

_NOTHING_WRITTEN = "Nothing of it is on disk: make that folder writable, free space, or choose another dump_path"


class StepReport:
    """Said after every step; each advice once per session."""

    def __init__(self, destination: Destination, clock: Clock, failures: Failures) -> None:
        self._destination = destination
        self._clock = clock
        self._failures = failures
        self._given_advice: set[str] = set()

    def say(self, step: int, sink: Sink, coverage: Coverage) -> None:
        failed, folder = coverage.failed + self._failures.count, self._destination.show(sink.writer.folder)
        is_written = sink.writer.has_records or not failed
        logger.info(
            "step %d: %s%s in %.2f s, in %s. %s",
            step,
            count_noun(coverage.recorded - sink.lost_count, "record"),
            f" and {count_noun(failed, 'failure')}" if failed else "",
            self._clock.seconds,
            folder,
            f"Next: tensorprobe show {shlex.quote(folder)}" if is_written else _NOTHING_WRITTEN,
        )
        advice = advise(coverage.unseen)
        if advice is not None and advice not in self._given_advice:
            self._given_advice.add(advice)
            logger.info("not seen: %s; %s", ", ".join(coverage.unseen), advice)
