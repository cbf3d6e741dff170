"""`PrecisionDebugger` for PyTorch."""

from __future__ import annotations

from typing import ClassVar

from tensorprobe.capture.debugger import Debugger


class PrecisionDebugger(Debugger):
    """Records what a PyTorch program computes, between `start` and `stop`.

    Arguments win over the configuration file; without either, statistics of every API call go to `./dump_path`. Besides
    the five that have a position, every key of the configuration is a keyword: `rank`, `list`, `scope`, `data_mode`,
    `summary_mode`, `tensor_list`, `async_dump`, `extra_info`, `api_yaml`, `on_nonfinite`, `compiled`, `max_disk`,
    `min_free`, `flight_recorder`, `tensorboard`. All methods work on the class as well, from any file:
    `PrecisionDebugger.start(model)`.
    """

    framework: ClassVar[str] = "torch"
