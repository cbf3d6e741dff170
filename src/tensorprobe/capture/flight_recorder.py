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
from statistics import median

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
        self._was_spike = False
        self._found: tuple[str, str] | None = None
        self.watch = StepWatch()
        self._signal = SignalRequest()
        if "signal" in options.on:
            self._signal.install()

    def begin_step(self, number: int, folder: Folder) -> None:
        self._current = RecordedStep(number, folder)
        self.watch = StepWatch()

    def judge(self, roots: Sequence[TensorLeaf]) -> dict[str, object]:
        """All of a step is fetched: what is to be said of it in run.json. What goes on for many steps is told once."""
        loss, on = self.watch.loss(roots), self._options.on
        nonfinite = self.watch.nonfinite if "nonfinite" in on else None
        is_spike = "loss_spike" in on and loss is not None and self._is_spike(loss)
        is_finite = loss is not None and math.isfinite(loss)
        if nonfinite is not None and not self._was_nonfinite:
            self._found = ("nonfinite", nonfinite)
        elif is_spike and not self._was_spike and (is_finite or not self._was_nonfinite):
            before = f", and the losses before it are about {median(self._losses):.6g}" if self._losses else ""
            self._found = ("loss_spike", f"the loss is {loss:.6g}{before}")
        self._was_nonfinite, self._was_spike = nonfinite is not None, is_spike
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
        if self._found is None:
            self._remove_old()
        else:
            self._trigger(number)

    def close(self, number: int) -> None:
        """No step follows. One that has begun may be all that there is of what happened: nothing is removed."""
        self._signal.remove()
        if self._current is not None:
            self._ring.append(self._current)
            self._current = None
        if self._found is not None:
            self._trigger(number)

    def _is_spike(self, loss: float) -> bool:
        return is_spike(loss, tuple(self._losses), self._options.spike_factor)

    def _remove_old(self) -> None:
        """Where a limit of disk space has ended the recording nothing new comes, and the last whole step is needed."""
        while len(self._ring) > self._options.steps and not self._limit.is_reached:
            oldest = self._ring.popleft()
            remove_dump(Folder(self._dump_path), oldest.folder.path.relative_to(self._dump_path).parts)
            self._limit.give_back(oldest.size_bytes)

    def _trigger(self, number: int) -> None:
        assert self._found is not None
        (kind, reason), self._found = self._found, None
        steps: tuple[int, ...] = ()
        self._remove_old()
        may_keep = self._kept[kind] < self._options.max_kept
        if may_keep and self._ring:
            self._kept[kind] += 1
            steps = tuple(step.number for step in self._ring)
            self._ring.clear()
        self._say(number, reason, steps, may_keep=may_keep)
        callback = self._options.callback
        if callback is not None:
            try:
                callback(Trigger(kind, number, reason, steps, self._dump_path))
            except Exception as error:
                logger.error("the callback of the flight recorder failed (%s: %s)", type(error).__name__, error)

    def _say(self, number: int, reason: str, steps: tuple[int, ...], *, may_keep: bool) -> None:
        if not steps:
            why = "No step is on disk to be kept" if may_keep else "No further steps are kept because of it"
            logger.warning("step %d: %s. %s", number, reason, why)
            return
        logger.warning(
            "step %d: %s. %s kept. Next: tensorprobe show %s --step %d",
            number,
            reason,
            f"The steps {', '.join(map(str, steps))} are" if len(steps) > 1 else f"Step {steps[0]} is",
            shlex.quote(str(self._dump_path)),
            steps[-1],
        )
