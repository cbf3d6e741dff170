"""The session of api_dump: one for the process, with one step that never ends. Counters go on over its windows; each
window has a selection of its own."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Any

from tensorprobe.capture.api_dump.describe import ApiDumpDescriber
from tensorprobe.capture.api_dump.operator import name_methods
from tensorprobe.capture.api_dump.recorder import LayerRecorder
from tensorprobe.capture.api_dump.selector import ApiDumpSelector
from tensorprobe.capture.describe import Describer
from tensorprobe.capture.framework import Framework
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.session import Session
from tensorprobe.capture.sink import Sink
from tensorprobe.capture.stack import StackTable
from tensorprobe.config import CaptureConfig
from tensorprobe.config.api_dump import ApiDumpOptions
from tensorprobe.errors import UsageError
from tensorprobe.model.count import count_noun
from tensorprobe.store.api_dump_layout import layout_of
from tensorprobe.store.api_dump_writer import ApiDumpWriter
from tensorprobe.store.folder import Folder

logger = logging.getLogger("tensorprobe")


class ApiDumpSession(Session):
    """What `api_dump_init` makes, for one net."""

    recorder: LayerRecorder

    def __init__(
        self, net: Any, framework: Framework, output_path: Path, *, retains_backward: bool, min_free: int | None
    ) -> None:
        self._net = net
        self._retains_backward = retains_backward
        self._selector: ApiDumpSelector | None = None
        self._is_filtered = True
        self._is_whole = False
        """Has the last window ended? What was recorded is complete then, although another one may follow."""
        framework.check_models(net)
        config = CaptureConfig(task="tensor", dump_path=output_path, level="api_dump", min_free=min_free)
        super().__init__(config, framework)

    def start_window(self, options: ApiDumpOptions) -> None:
        """Record what `options` want, from now on; a window that is open ends here."""
        if self.is_closed:
            raise UsageError(
                "api_dump_start: what api_dump_init has begun is over, because this process was forked from the one "
                "that called it: call api_dump_init here, with an output_path of its own"
            )
        self.stop()
        if self.framework.name == "pytorch":
            options = name_methods(options)
        self._warn_of_backward(options)
        if self._selector is None or not self._selector.continues(options):
            self._selector = ApiDumpSelector(options, keeps_backward=self._retains_backward)
        self._selector.use(options)
        self.recorder.use_selector(self._selector)
        self._is_filtered = self._describer.is_filtered = options.filters_data
        if self._sink is not None:
            self._filter_lines(self._sink)
        self._is_whole = False
        self.start(self._net)

    def stop(self) -> None:
        self._is_whole = True
        was_started = self.is_started
        super().stop()
        sink = self._sink
        if was_started and sink is not None and not self.is_closed:  # complete, as far as it goes
            self._attempt("the earlier run in this folder", lambda: self._end_place(sink, None))

    def _run(self, *, is_complete: bool) -> dict[str, Any]:
        is_whole = self._is_whole and not self.is_closed and not self._limit.is_reached
        return super()._run(is_complete=is_complete or is_whole)

    def _warn_of_backward(self, options: ApiDumpOptions) -> None:
        asked = [f"{name.call}_{name.direction}" for name in options.names if name.direction == "backward"]
        if asked and not self._retains_backward:
            logger.warning(
                "api_dump_start: %s in scope will never come, because no gradients are recorded: "
                "call api_dump_init with retain_backward=True",
                ", ".join(asked),
            )

    def _make_describer(self) -> Describer:
        self._describer = ApiDumpDescriber(self._reader, self._queue, self.framework.file_suffix)
        return self._describer

    def _make_recorder(self, describer: Describer, stacks: StackTable) -> Recorder:
        return LayerRecorder(self.config, self._reader, describer, stacks)

    def _make_writer(self, folder: Folder, header: dict[str, Any]) -> ApiDumpWriter:
        writer = ApiDumpWriter(folder, header, layout_of(self.framework.name))
        writer.is_filtered = self._is_filtered
        return writer

    def _filter_lines(self, sink: Sink) -> None:
        assert isinstance(sink.writer, ApiDumpWriter)
        sink.writer.is_filtered = self._is_filtered

    def _tensor_folder(self) -> str:
        return layout_of(self.framework.name).tensor_folder

    def _folder_places(self, name: str) -> tuple[str, ...]:
        """Without a rank this process is rank 0."""
        return ("rank0" if name == "rank" else name,)

    def _report(self, sink: Sink) -> None:
        folder = sink.writer.folder.path
        records = count_noun(self.recorder.coverage.recorded - sink.lost_count, "record")
        logger.info("api_dump: %s in %s. Next: tensorprobe show %s", records, folder, shlex.quote(str(folder)))
