"""What the callbacks for all trainers share: one training that is recorded, step by step, by the trainer's numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from tensorprobe.config import load_config
from tensorprobe.pytorch.debugger import PrecisionDebugger

StrPath = str | os.PathLike[str]


class TrainingCallback:
    """What all callbacks are made with: `options` are the other keys of config.json, flat, as for
    `tensorprobe.capture`; without a level it is mix."""

    def __init__(
        self,
        dump_path: StrPath | None = None,
        *,
        level: str | None = None,
        config_path: StrPath | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._training = Training(config_path, {"dump_path": dump_path, "level": level, **options})


class Training:
    """What a callback tells of the training it sees. Until the training begins it holds plain values only, so that the
    callback can be sent to another process."""

    _running: ClassVar[Training | None] = None

    def __init__(self, config_path: StrPath | None, options: dict[str, Any]) -> None:
        if options.get("level") is None and config_path is None:
            options = {**options, "level": "mix"}
        load_config(config_path, **options)  # what is wrong is said now, and not later in the training
        self._config_path = None if config_path is None else Path(config_path).absolute()
        self._options = options
        self._debugger: PrecisionDebugger | None = None

    def begin(self) -> None:
        """The training begins. An earlier one may have ended by an exception of which its callback was not told."""
        if Training._running is not None:
            Training._running.end()
        self._debugger = PrecisionDebugger(self._config_path, **self._options)
        Training._running = self

    def open_window(self, model: Any, step: int) -> None:
        """A batch begins that belongs to this step."""
        if self._debugger is not None:
            self._debugger.set_init_step(step)
            self._debugger.start(model)

    def close_window(self) -> None:
        """What follows is not recorded: the optimizer's own work, an evaluation, the loading of data."""
        if self._debugger is not None:
            self._debugger.stop()

    def end_step(self) -> None:
        """The optimizer has made its step."""
        if self._debugger is not None:
            self._debugger.step()

    def end(self, error: BaseException | None = None) -> None:
        """The training is over, or `error` has ended it: the files are complete after this."""
        debugger, self._debugger = self._debugger, None
        if Training._running is self:
            Training._running = None
        if debugger is not None:
            debugger.close(error)
