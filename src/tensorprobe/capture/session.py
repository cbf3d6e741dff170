"""One debugging session: the window from start to stop, the steps, and the way out of the process.

Between `stop` and `start`, and for steps and ranks that are filtered out, nothing is installed. What was recorded is
written when the window closes, when a backward pass ends after it, and when the process ends by any way but SIGKILL.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from tensorprobe.capture.circumstances import describe_circumstances
from tensorprobe.capture.describe import Describer
from tensorprobe.capture.framework import Framework, Undo
from tensorprobe.capture.message import show_messages
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.single_point import SinglePoints
from tensorprobe.capture.sink import FlushTimer, Sink
from tensorprobe.capture.stack import StackTable
from tensorprobe.capture.tensor_queue import ASYNC_QUEUE_BYTES, QUEUE_BYTES, TensorQueue
from tensorprobe.config import CaptureConfig
from tensorprobe.errors import UsageError
from tensorprobe.store import layout
from tensorprobe.store.writer import RankWriter

logger = logging.getLogger("tensorprobe")


class Session:
    """What `PrecisionDebugger` and `tensorprobe.capture` are faces of."""

    def __init__(self, config: CaptureConfig, framework: Framework) -> None:
        show_messages()
        self.config = config
        self.framework = framework
        has_stats = config.task != "structure"
        digest_kind = config.summary_mode if has_stats and config.summary_mode != "statistics" else None
        self._reader = framework.make_reader(has_stats=has_stats, digest_kind=digest_kind)
        self._queue = TensorQueue(self._reader.write_file, ASYNC_QUEUE_BYTES if config.async_dump else QUEUE_BYTES)
        self._describer = Describer(self._reader, self._queue, framework.file_suffix)
        self._stacks = StackTable(framework.is_noise, framework.caller_of)
        self.recorder = Recorder(config, self._reader, self._describer, self._stacks)
        self.recorder.after_backward_pass = self._after_backward_pass
        self._points = SinglePoints(self.recorder, self._describer, framework)
        self._step = 0
        self._sink: Sink | None = None
        self._undo: Undo | None = None
        self._timer: FlushTimer | None = None
        self._circumstances: dict[str, Any] = {}
        self._terminator = Terminator(self)
        self._lock = threading.RLock()
        self._is_closed = False
        self._seconds = 0.0
        _follow_process(self)

    @property
    def is_started(self) -> bool:
        return self._undo is not None

    @property
    def current_step(self) -> int:
        return self._step

    def start(self, model: Any = None) -> None:
        """Open the window."""
        if self.config.level == "debug":
            return  # single points need no window
        models = self._check_start(model)
        if self.is_started:
            logger.warning("start() was called again without stop(); the first window goes on")
            return
        if not self._is_selected():
            return
        self._seconds -= time.perf_counter()
        self._open().open_dump()
        try:
            self._undo = self.framework.install(self.recorder, models)
            self._terminator.install()
        except Exception as error:
            self.recorder.note_failure("this window", error)

    def stop(self) -> None:
        """Close the window, and make the files whole. The backward of what was recorded is still recorded, until
        `step`."""
        if self._undo is None:
            return
        undo, self._undo = self._undo, None
        undo()
        self._terminator.remove()
        self.settle()
        self._seconds += time.perf_counter()

    def step(self) -> None:
        """End the step: everything of it is on disk, and names start anew."""
        self.stop()
        self._points.end_step()
        sink = self._sink
        if sink is not None:
            self.recorder.end_step()
            self._close_sink(sink, is_finished=True)
            self._sink = None
            self._report(sink.writer.folder)
        self._seconds = 0.0
        self._step += 1

    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        """Record one variable, and its gradient when it comes."""
        if not isinstance(name, str) or not name:
            raise UsageError(f"save(variable, name): the name must be a text that is not empty, not {name!r}")
        if not self._is_selected():
            return
        self._open()
        stores = self.config.task == "tensor"
        self._points.save(variable, name, has_backward=save_backward, stores=stores)

    def settle(self) -> None:
        """Bring everything that was recorded so far to whole files."""
        if self._sink is not None:
            self.recorder.end_backward_pass()
            self._close_sink(self._sink, is_finished=False)

    def close(self) -> None:
        """The process ends, or the context: write everything and let go."""
        if self._is_closed:
            return
        self._is_closed = True
        self.stop()
        self._points.end_step()
        if self._sink is not None:
            self.recorder.end_step()
            self._close_sink(self._sink, is_finished=True)
            self._sink = None
        if self._timer is not None:
            self._timer.close()
        self._queue.close()

    def abandon(self) -> None:
        """In a forked child: the dump belongs to the parent, so nothing is written and nothing stays installed."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()
        self.recorder.abandon()
        self._queue.abandon()
        if self._sink is not None:
            self._sink.writer.abandon()
        self._sink, self._timer, self._is_closed = None, None, True

    def _check_start(self, model: Any) -> Sequence[tuple[str, Any]]:
        if self._is_closed:
            raise UsageError("this debugger is closed: its process has forked or its context has ended")
        models = self.framework.check_models(model)
        if not models and self.config.level in ("L0", "mix"):
            raise UsageError(
                f"level {self.config.level} records modules: call start(model) with the model, or use level L1"
            )
        return models

    def _is_selected(self) -> bool:
        rank = self.framework.rank()
        is_rank = not self.config.rank or rank is None or rank in self.config.rank
        is_step = not self.config.step or self._step in self.config.step
        return is_rank and is_step and not self._is_closed

    def _open(self) -> Sink:
        with self._lock:
            if self._sink is None:
                self._sink = self._make_sink()
                self.recorder.begin_step(self._sink)
                self._points.begin_step()
            if self._timer is None:
                self._timer = FlushTimer(self._current_sink)
            return self._sink

    def _after_backward_pass(self) -> None:
        """Outside a window nobody will call `stop`: the files are made whole as soon as the pass is over."""
        if not self.is_started and self._sink is not None and self.config.level != "debug":
            self._close_sink(self._sink, is_finished=False)

    def _current_sink(self) -> Sink | None:
        return self._sink

    def _make_sink(self) -> Sink:
        config = self.config
        folder = layout.rank_folder(config.dump_path, self._step, self.framework.rank())
        tensors = folder / layout.TENSOR_FOLDER
        stores = config.task == "tensor" or bool(config.tensor_list)
        header = {
            "task": config.task,
            "level": config.level,
            "framework": self.framework.name,
            "dump_data_dir": str(tensors) if stores else None,
        }
        writer = RankWriter(folder, header, has_construct=config.level != "L1", has_extra=config.extra_info)
        if writer.replaced_earlier_run:
            logger.warning("%s held an earlier dump, which is replaced", folder)
        self._queue.set_folder(tensors)
        self._circumstances = describe_circumstances(self.framework.name, self.framework.circumstances())
        return Sink(writer, self._reader.fetch)

    def _close_sink(self, sink: Sink, *, is_finished: bool) -> None:
        with self._lock:
            self._queue.drain()
            coverage = self.recorder.coverage.as_dict()
            coverage["failed"] += sink.failed + self._queue.failed
            sink.close({**self._circumstances, "coverage": coverage, "complete": is_finished}, is_finished=is_finished)

    def _report(self, folder: Path) -> None:
        coverage = self.recorder.coverage
        logger.info(
            "step %d: %d records in %s (%.2f s between start and stop). Next: tensorprobe show %s",
            self._step,
            coverage.recorded,
            folder,
            self._seconds,
            folder,
        )


class Terminator:
    """SIGTERM, as a cluster sends it before it kills: the dump is made whole first. Only while a window is open, and
    only where nobody else handles it."""

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)
        self._is_installed = False

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)
            self._is_installed = True

    def remove(self) -> None:
        if self._is_installed and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) == self._handle:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._is_installed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        session = self._session()
        if session is not None:
            session.close()
        os.kill(os.getpid(), signal.SIGTERM)


def _follow_process(session: Session) -> None:
    """Write at exit; be inert in forked children."""
    reference = weakref.ref(session)
    atexit.register(_close_at_exit, reference)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: _abandon_in_child(reference))


def _close_at_exit(reference: weakref.ref[Session]) -> None:
    session = reference()
    if session is not None:
        session.close()


def _abandon_in_child(reference: weakref.ref[Session]) -> None:
    session = reference()
    if session is not None:
        session.abandon()
