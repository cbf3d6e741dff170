"""One debugging session: the window from start to stop, the steps, and what is open between them.

Between `stop` and `start`, and for steps and ranks that are filtered out, nothing is installed. What was recorded is
written when the window closes, when a backward pass ends after it, and when the process ends by any way but SIGKILL.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from tensorprobe.capture import process
from tensorprobe.capture.circumstances import describe_circumstances
from tensorprobe.capture.clock import Clock
from tensorprobe.capture.collector import collector
from tensorprobe.capture.deferral import Deferral
from tensorprobe.capture.describe import Describer
from tensorprobe.capture.destination import Destination
from tensorprobe.capture.disk_limit import DiskLimit
from tensorprobe.capture.failure import Failures
from tensorprobe.capture.flight_recorder import FlightRecorder
from tensorprobe.capture.framework import Framework, Undo
from tensorprobe.capture.message import show_messages
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.scalar_board import make_board
from tensorprobe.capture.single_point import SinglePoints
from tensorprobe.capture.sink import FlushTimer, Sink
from tensorprobe.capture.stack import StackTable
from tensorprobe.capture.step_cost import StepCost
from tensorprobe.capture.step_report import StepReport
from tensorprobe.capture.storing import Storing
from tensorprobe.capture.tensor_queue import make_queue
from tensorprobe.config import CaptureConfig
from tensorprobe.errors import UsageError
from tensorprobe.store import layout
from tensorprobe.store.folder import Folder
from tensorprobe.store.run_place import RunPlace
from tensorprobe.store.writer import RankWriter

logger = logging.getLogger("tensorprobe")


class Session:
    """What `PrecisionDebugger` and `tensorprobe.capture` are faces of."""

    def __init__(self, config: CaptureConfig, framework: Framework) -> None:
        show_messages()
        if config.compiled == "eager":
            framework.check_eager()
        self.config = config
        self.framework = framework
        self._destination = Destination(config)
        has_stats = config.task != "structure"
        digest_kind = config.summary_mode if has_stats and config.summary_mode != "statistics" else None
        self._reader = framework.make_reader(has_stats=has_stats, digest_kind=digest_kind)
        self._failures = Failures()
        self._queue = make_queue(self._reader.write_file, self._failures, framework, is_async=config.async_dump)
        describer = self._make_describer()
        stacks = StackTable(framework.is_noise, framework.caller_of)
        self.recorder = self._make_recorder(describer, stacks)
        self.recorder.after_backward_pass = self._after_backward_pass
        self._points = SinglePoints(self.recorder, describer, framework)
        self._step = 0
        self._sink: Sink | None = None
        self._undo: Undo | None = None
        self._timer: FlushTimer | None = None
        self._places: dict[int | None, RunPlace] = {}
        self._place: RunPlace | None = None
        self._clock = Clock()
        self._circumstances: dict[str, Any] = {}
        self._work = Deferral()
        self._limit = DiskLimit(config, self._destination.folder, self._queue)
        self._limit.when_reached = lambda: setattr(self.recorder.selector, "is_over", True)
        self._board = make_board(config)
        self._queue.limit = self._limit
        self._cost = StepCost(config, self._limit)
        options = config.flight_recorder
        self._flight = None if options is None else FlightRecorder(options, self._destination.folder, self._limit)
        self._step_report = StepReport(self._destination, self._clock, self._failures)
        self._is_closed = False
        process.follow(self)

    @property
    def is_started(self) -> bool:
        return self._undo is not None

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def current_step(self) -> int:
        return self._step

    def start(self, model: Any = None) -> None:
        """Open the window."""
        if self.config.level == "debug":
            return  # single points need no window
        models = self._check_start(model)
        process.refuse_second_window(self)
        if self.is_started:
            logger.warning("start() was called again without stop(); the first window goes on")
            return
        with self._work:  # Ctrl-C waits until all of it is installed
            sink = self._open()
            if sink is not None:
                self._attempt("the beginning of this window", sink.open_dump)
                self._clock.start()
                before = collector.begin()
                self._attempt("this window", lambda: self._install(models))
                collector.end(before)

    def stop(self) -> None:
        """Close the window, and make the files whole. The backward of what was recorded is still recorded, until
        `step`."""
        if self._undo is None:
            return
        with self._work:
            undo, self._undo = self._undo, None
            self._attempt("what this window had installed", undo)
            if not self._attempt("the end of this window", self.recorder.end_backward_pass):
                self._after_backward_pass()
            collector.restore()
            self._clock.stop()

    def step(self) -> None:
        """End the step: everything of it is on disk, and names start anew."""
        self._leave_step()
        self._step += 1

    def set_step(self, number: int) -> None:
        """Give the step that follows a number; one with another number that is not over is ended first."""
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise UsageError(f"set_init_step(step) takes a whole number that is not negative, not {number!r}")
        if number != self._step:
            self._leave_step()
            self._step = number

    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        """Record one variable, and its gradient when it comes."""
        if not isinstance(name, str) or not name:
            raise UsageError(f"save(variable, name): the name must be a text that is not empty, not {name!r}")
        if self._open() is None:
            return
        if not self.is_started:
            self._reader.forget()  # nobody saw what happened to the values since they were read
        stores = Storing.ALL if self.config.task in ("tensor", "replay") else Storing.NONE
        self._points.save(variable, name, has_backward=save_backward, stores=stores)

    def close(self, ending: str | None = None) -> None:
        """The process ends, or the context: write everything and let go. `ending` is the exception or the signal that
        ended it before its time."""
        if self._is_closed:
            return
        self._is_closed = True
        is_untouched = self.is_started and not self.recorder.coverage.has_any()
        self.stop()
        if self._sink is not None and is_untouched:
            self._attempt("the end of a window in which nothing happened", self._sink.discard)
            if self._place is not None:
                self._attempt("the earlier run in this folder", self._place.leave)
            self._release()
            self._attempt("the end of this step", self.recorder.end_step)
            self._attempt("what this step had hooked", self.framework.end_step)
        else:
            self._end_step(ending)
        if self._timer is not None:
            self._timer.close()
        if (flight := self._flight) is not None:
            self._attempt("the flight recorder", lambda: flight.close(self._step))
        if self._board is not None:
            self._attempt("TensorBoard", self._board.close)
        self._attempt("the last tensor files", self._queue.close)
        names = {place.name for place in self._places.values()}
        self._attempt("what is sent to the store", lambda: self._destination.close(ending, names))
        for place in self._places.values():
            place.release()

    def abandon(self) -> None:
        """In a forked child: the dump belongs to the parent, so nothing is written and nothing stays installed."""
        self._is_closed = True
        self._work = Deferral()
        self._timer = None
        undo, self._undo = self._undo, None
        actions = [self.recorder.abandon, self._queue.abandon, self._destination.abandon, self._release]
        if self._sink is not None:
            actions.insert(0, self._sink.writer.abandon)
        if undo is not None:
            actions.insert(0, undo)
        for action in actions:
            self._attempt("in a forked process, what belongs to its parent", action)

    def defer(self, action: Callable[[], None]) -> bool:
        """Run `action` later, if this thread is in the middle of writing."""
        return self._work.defer(action)

    def _install(self, models: Sequence[tuple[str, Any]]) -> None:
        self._undo = self.framework.install(self.recorder, models)

    def _check_start(self, model: Any) -> Sequence[tuple[str, Any]]:
        if self._is_closed:
            raise UsageError(
                "this debugger is closed, because its context has ended or its process was forked from the one that "
                "made it: make another one here, with arguments of its own"
            )
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
        is_possible = not self._is_closed and not self._limit.is_reached
        return is_rank and is_step and is_possible and self.framework.takes_part()

    # -- how records are named, and where they lie ---------------------------------------------------------------------

    def _make_describer(self) -> Describer:
        return Describer(self._reader, self._queue, self.framework.file_suffix)

    def _make_recorder(self, describer: Describer, stacks: StackTable) -> Recorder:
        return Recorder(self.config, self._reader, describer, stacks)

    def _make_writer(self, folder: Folder, header: dict[str, Any]) -> RankWriter:
        has_construct = self.config.level != "L1"
        return RankWriter(folder, header, has_construct=has_construct, has_extra=self.config.extra_info)

    def _tensor_folder(self) -> str:
        return layout.TENSOR_FOLDER

    # -- the files of a step -------------------------------------------------------------------------------------------

    def _open(self) -> Sink | None:
        """Where the records of this step go; None for a step or a rank that is not recorded."""
        if not self._is_selected():
            return None
        with self._work:
            if self._sink is None:
                self._begin_step()
            if self._timer is None:
                self._attempt("what waits, at regular times,", self._begin_timer)
            return self._sink

    def _begin_timer(self) -> None:
        self._timer = FlushTimer(lambda: self._sink, self._failures)

    def _begin_step(self) -> None:
        config = self.config
        place = self._place = self._take_place()
        folder = place.open(*self._folder_places(place.name))
        tensors = folder.child(self._tensor_folder())
        header = {
            "task": config.task,
            "level": config.level,
            "framework": self.framework.name,
            "dump_data_dir": self._destination.show(tensors) if config.stores_any_tensor else None,
        }
        writer = self._make_writer(folder, header)
        self._limit.begin_step(self._step, folder)
        sink = self._sink = Sink(writer, self._fetch, self._queue, self._failures, self._work)
        sink.flush_later = lambda: self._ask_timer(sink.flush_unless_held)
        if self._flight is not None:
            self._flight.begin_step(self._step, folder)
            sink.observers.append(self._flight.watch.observe)
        if self._board is not None:
            sink.observers.append(self._board.observe)
        self._failures.restart()
        self._clock.restart()
        self.recorder.begin_step(sink)
        self._points.begin_step()
        self._queue.folder = tensors
        self._attempt("run.json", self._describe_circumstances)
        self._attempt("the beginning of this step", lambda: sink.open(self._run(is_complete=False)))
        process.begin_recording(self)

    def _folder_places(self, name: str) -> tuple[str, ...]:
        """The folder of this step and this process, from the dump_path down."""
        return layout.step_name(self._step), name

    def _take_place(self) -> RunPlace:
        """The rank is known later than this session in some programs."""
        rank = self.framework.rank()
        if rank not in self._places:
            run_id = next((place.run_id for place in self._places.values()), None)
            self._places[rank] = RunPlace(self._destination.folder, rank, run_id)
        return self._places[rank]

    def _leave_step(self) -> None:
        """Another step follows this one."""
        self.stop()
        size_bytes = self._end_step()
        if (flight := self._flight) is not None:
            self._attempt("the flight recorder", lambda: flight.end_step(self._step, size_bytes))

    def _end_step(self, ending: str | None = None) -> int:
        """How much the step has written."""
        sink = self._sink
        if sink is None:
            return 0
        with self._work:
            self._attempt("the saved variables of this step", self._points.end_step)
            self._attempt("the end of this step", self.recorder.end_step)
            self._attempt("what this step had hooked", self.framework.end_step)
            self._close_sink(sink, is_finished=True, ending=ending)
            self._attempt("the earlier run in this folder", lambda: self._end_place(sink, ending))
            self._release()
        self._report(sink)
        board = self._board
        if board is not None:
            self._attempt("TensorBoard", lambda: board.end_step(self._step, self.framework.rank()))
        self._attempt("what is sent to the store", lambda: self._destination.end_step(sink.writer.folder))
        size_bytes = self._limit.end_step()
        self._cost.say(self._step, size_bytes, self.recorder.coverage.recorded)
        return size_bytes

    def _end_place(self, sink: Sink, ending: str | None) -> None:
        ending = ending or self._limit.ending
        if self._place is not None:
            self._place.end_step(is_complete=ending is None and not sink.lost_count and sink.writer.has_records)

    def _release(self) -> None:
        self._sink = None
        process.end_recording(self)

    def _close_sink(self, sink: Sink, *, is_finished: bool, ending: str | None = None) -> None:
        with self._work:
            self._attempt("the last tensor files", self._queue.drain)
            self._attempt("the last records", sink.flush)  # what fails here is counted in what is written next
            ending = ending or self._limit.ending
            run = self._run(is_complete=is_finished and ending is None)
            if ending is not None:
                run["ended"] = ending
            flight, losses = self._flight, self.recorder.backward_passes.losses
            if flight is not None and is_finished:
                self._attempt("the flight recorder", lambda: run.update(flight_recorder=flight.judge(losses)))
            self._attempt("the end of the files", lambda: sink.close(run, is_finished=is_finished))

    def _after_backward_pass(self) -> None:
        """Outside a window nobody will call `stop`: the files are made whole as soon as the pass is over."""
        (collector.look_again if self.is_started else collector.restore)()
        sink = self._sink
        if self.is_started or sink is None or self.config.level == "debug":
            return
        if not self._ask_timer(lambda: self._close_window(sink)):
            self._close_sink(sink, is_finished=False)

    def _close_window(self, sink: Sink) -> None:
        """In another thread: the program may have gone on."""
        with self._work:
            if not self.is_started and self._sink is sink:
                self._close_sink(sink, is_finished=False)

    def _ask_timer(self, action: Callable[[], None]) -> bool:
        """Where a device is still computing, another thread waits for it while the program goes on. False if there is
        nothing to wait for, or nobody who could."""
        return self._timer is not None and self._reader.begin_fetch() and self._timer.ask(action)

    def _describe_circumstances(self) -> None:
        self._circumstances = describe_circumstances(self.framework.name, self.framework.circumstances())

    def _run(self, *, is_complete: bool) -> dict[str, Any]:
        coverage = self.recorder.coverage.as_dict()
        coverage["recorded"] -= self._sink.lost_count if self._sink is not None else 0
        coverage["failed"] += self._failures.count
        choices: dict[str, str] = {"task": self.config.task, "level": self.config.level}
        if self.recorder.runs_compiled_eagerly:
            choices["compiled"] = self.config.compiled
        identity = {"run_id": self._place.run_id if self._place is not None else None}
        requests = self.recorder.backward_passes.as_list()
        passes: dict[str, Any] = {"backward_passes": requests} if requests else {}
        if self.recorder.backward_passes.reductions:
            passes["gradient_reductions"] = self.recorder.backward_passes.reductions
        return {
            **identity,
            **self._circumstances,
            **choices,
            **passes,
            "coverage": coverage,
            "complete": is_complete,
        }

    def _attempt(self, what: str, action: Callable[[], None]) -> bool:
        """What goes wrong inside capture does not reach the user's program; False if something did."""
        try:
            action()
        except Exception as error:
            self.recorder.note_failure(what, error)
            return False
        return True

    def _fetch(self) -> None:
        self._reader.fetch()
        self._limit.check()

    def _report(self, sink: Sink) -> None:
        self._step_report.say(self._step, sink, self.recorder.coverage)
