"""The flight recorder: the last steps are on disk, as steps of any dump; older ones are removed. When something happens
they stay, so that it is explained without another run.

Steps are written before anybody knows that they will be needed: so they are there after a kill, too. What happened is
decided when a step ends, from statistics that were fetched to be written.
"""

from __future__ import annotations

import logging
import math
import shlex
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorprobe.capture.disk_limit import DiskLimit
from tensorprobe.capture.signal_request import SignalRequest
from tensorprobe.capture.step_watch import StepWatch, is_spike
from tensorprobe.config.flight_recorder import FlightRecorderOptions
from tensorprobe.model.record import TensorLeaf
from tensorprobe.store.earlier_run import remove_dump
from tensorprobe.store.folder import Folder

logger = logging.getLogger("tensorprobe")


@dataclass(frozen=True)
class Trigger:
    """What happened, as the callback is told it."""

    kind: str
    """`nonfinite`, `loss_spike` or `signal`"""
    step: int
    """The step at whose end it was known."""
    reason: str
    steps: tuple[int, ...]
    """Those that stay on disk because of it; none where enough were kept before."""
    dump_path: Path


@dataclass
class RecordedStep:
    """A step that is on disk and may be removed."""

    number: int
    folder: Folder
    size_bytes: int = 0


class FlightRecorder:
    """The ring of one session."""

    def __init__(self, options: FlightRecorderOptions, dump_path: Path, limit: DiskLimit) -> None:
        self._options = options
        self._dump_path = dump_path
        self._limit = limit
        self._ring: deque[RecordedStep] = deque()
        self._current: RecordedStep | None = None
        self._kept: Counter[str] = Counter()
        self._losses: deque[float] = deque(maxlen=options.spike_window)
        self._was_nonfinite = False
        self._found: tuple[str, str] | None = None
        self.watch = StepWatch()
        self._signal = SignalRequest()
        if "signal" in options.on:
            self._signal.install()

    def begin_step(self, number: int, folder: Folder) -> None:
        self._current = RecordedStep(number, folder)
        self.watch = StepWatch()

    def judge(self, roots: Sequence[TensorLeaf]) -> dict[str, object]:
        """All of a step is fetched: what is to be said of it in run.json."""
        loss, nonfinite, on = self.watch.loss(roots), self.watch.nonfinite, self._options.on
        if "nonfinite" in on and nonfinite is not None and not self._was_nonfinite:
            self._found = ("nonfinite", nonfinite)
        elif "loss_spike" in on and loss is not None and self._is_spike(loss):
            before = f", and the losses before it are about {sorted(self._losses)[len(self._losses) // 2]:.6g}"
            self._found = ("loss_spike", f"the loss is {loss:.6g}{before if self._losses else ''}")
        self._was_nonfinite = nonfinite is not None
        is_finite = loss is not None and math.isfinite(loss)
        if loss is not None and is_finite:
            self._losses.append(loss)
        said: dict[str, object] = {} if loss is None else {"loss": loss if is_finite else repr(loss)}
        if self._found is not None:
            said["trigger"], said["reason"] = self._found
        return said

    def end_step(self, number: int, size_bytes: int) -> None:
        """A step of the program is over, recorded or not: keep what is to be kept, remove what is too old."""
        if self._current is not None:
            self._current.size_bytes = size_bytes
            self._ring.append(self._current)
            self._current = None
        if self._signal.take() and self._found is None:
            self._found = ("signal", "SIGUSR1 asked for it")
        found, self._found = self._found, None
        if found is not None:
            self._trigger(number, *found)
        while len(self._ring) > self._options.steps:
            oldest = self._ring.popleft()
            remove_dump(oldest.folder)
            self._limit.give_back(oldest.size_bytes)

    def close(self) -> None:
        self._signal.remove()

    def _is_spike(self, loss: float) -> bool:
        return is_spike(loss, tuple(self._losses), self._options.spike_factor)

    def _trigger(self, number: int, kind: str, reason: str) -> None:
        self._kept[kind] += 1
        steps: tuple[int, ...] = ()
        if self._kept[kind] <= self._options.max_kept:
            while len(self._ring) > self._options.steps:
                remove_dump(self._ring.popleft().folder)
            steps = tuple(step.number for step in self._ring)
            self._ring.clear()
        self._say(number, reason, steps)
        callback = self._options.callback
        if callback is not None:
            try:
                callback(Trigger(kind, number, reason, steps, self._dump_path))
            except Exception as error:
                logger.error("the callback of the flight recorder failed (%s: %s)", type(error).__name__, error)

    def _say(self, number: int, reason: str, steps: tuple[int, ...]) -> None:
        if not steps:
            logger.warning("step %d: %s. No further steps are kept because of it", number, reason)
            return
        logger.warning(
            "step %d: %s. The steps %s are kept. Next: tensorprobe show %s --step %d",
            number,
            reason,
            ", ".join(map(str, steps)),
            shlex.quote(str(self._dump_path)),
            steps[-1],
        )
