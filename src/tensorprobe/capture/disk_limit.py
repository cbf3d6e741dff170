"""`max_disk` and `min_free`: recording stops before a disk is full, and the program goes on.

A tensor file is asked for before it is written; records, which are small, are counted at each flush. Links cost nothing
and are not asked for. What one process writes is counted, so that no rank waits for another.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tensorprobe.capture.tensor_queue import TensorQueue
from tensorprobe.config import CaptureConfig
from tensorprobe.config.size import show_size
from tensorprobe.store.folder import Folder

logger = logging.getLogger("tensorprobe")

MIN_FREE_BYTES = 10**9
"""What is left free where the configuration does not say; on a small disk less."""
_MIN_FREE_SHARE = 0.02


class DiskLimit:
    """How much one session may still write."""

    def __init__(self, config: CaptureConfig, dump_path: Path, queue: TensorQueue) -> None:
        self.reason: str | None = None
        """Why nothing more is recorded; None as long as there is room."""
        self.when_reached: Callable[[], None] = lambda: None
        """Is to see to it that nothing more is recorded; calls that have begun still end."""
        self._step = 0
        self._config = config
        self._dump_path = dump_path
        self._queue = queue
        self._folder: Folder | None = None
        self._record_bytes = 0
        """Of the steps that are over."""
        self._tensor_bytes = 0
        """Before this step."""

    @property
    def is_reached(self) -> bool:
        return self.reason is not None

    @property
    def ending(self) -> str | None:
        """What ended a step before its time, for run.json."""
        return None if self.reason is None else f"its limit of disk space ({self.reason})"

    def begin_step(self, step: int, folder: Folder) -> None:
        self._step = step
        self._folder = folder
        self._tensor_bytes = self._queue.written_bytes

    def end_step(self) -> int:
        """How much the step has written."""
        records = self._size_of_records()
        self._record_bytes += records
        self._folder = None
        return records + self._queue.written_bytes - self._tensor_bytes

    def give_back(self, size_bytes: int) -> None:
        """A step was removed again."""
        self._record_bytes -= size_bytes

    def check(self) -> None:
        """Is there room for more records?"""
        if not self.is_reached:
            self._record(self._find_reason(0, self._size_of_records()))

    def admits(self, size_bytes: int) -> bool:
        """May a tensor file of this size be written?"""
        if not self.is_reached:
            self._record(self._find_reason(size_bytes, 0))
        return not self.is_reached

    def free_bytes(self) -> int | None:
        """What is free; None where the system does not tell."""
        with suppress(OSError):
            return shutil.disk_usage(self._dump_path).free
        return None

    def _record(self, reason: str | None) -> None:
        if reason is not None:
            self.reason = reason
            self.when_reached()
            where, rest, choice = self._describe_rest()
            logger.error(
                "recording stops%s, and the program goes on: %s. What was recorded until now can be read in %s; %s "
                "left out. To record more, free space, choose fewer %s, or change that limit",
                where,
                reason,
                self._dump_path,
                rest,
                choice,
            )

    def _describe_rest(self) -> tuple[str, str, str]:
        """Where recording stops, what is missing therefore, and what there could be less of; api_dump has no steps."""
        if self._config.level == "api_dump":
            return "", "all later calls and windows are", "calls"
        return f" in step {self._step}", "the rest of this step and all later steps are", "steps or calls"

    def _find_reason(self, size_bytes: int, record_bytes: int) -> str | None:
        waiting = self._queue.waiting_bytes + size_bytes
        used = self._record_bytes + record_bytes + self._queue.written_bytes + waiting
        max_disk = self._config.max_disk
        if max_disk is not None and used > max_disk:
            return f'"max_disk" allows {show_size(max_disk)}, and the next record would need more'
        min_free = self._config.min_free
        if min_free == 0:
            return None
        try:
            disk = shutil.disk_usage(self._dump_path)
        except OSError:  # what cannot be written is said by who writes it
            return None
        if min_free is None:
            min_free = min(MIN_FREE_BYTES, int(disk.total * _MIN_FREE_SHARE))
        if disk.free - waiting < min_free:
            return f'{show_size(disk.free)} are free in {self._dump_path}, and "min_free" keeps {show_size(min_free)}'
        return None

    def _size_of_records(self) -> int:
        folder = self._folder
        if folder is None:
            return 0
        with suppress(OSError):
            return sum(folder.status(name).st_size for name in folder.names() if folder.is_file(name))
        return 0
