"""Statistics and hashes of CUDA tensors by one kernel launch each; the numbers come to the host together, at
`fetch`."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

import numpy as np
import torch

from tensorprobe.capture.torch.statistics import Extent, describe_failure, fill_stats
from tensorprobe.model.record import Stats, Value

logger = logging.getLogger("tensorprobe")

_ROWS = 1 << 16


def make_kernel_buffer(device: torch.device) -> KernelBuffer | None:
    """A buffer for a CUDA device; None where the kernel cannot run."""
    if device.type != "cuda" or torch.version.hip or importlib.util.find_spec("triton") is None:
        return None
    try:
        return KernelBuffer(device)
    except Exception as error:
        logger.debug("no kernel on %s, its tensors are reduced by torch's own: %s", device, error)
        return None


class KernelBuffer:
    """Rows that the kernel fills. Each value takes as many rows as programs ran on it."""

    def __init__(self, device: torch.device) -> None:
        from tensorprobe.capture.torch import device_kernel

        self._launch = device_kernel.launch
        self._row_count = device_kernel.program_count
        self.dtypes = device_kernel.DTYPES
        self._device = device
        with torch.inference_mode(False):  # an inference tensor could not be written outside inference mode
            self._rows = torch.empty(_ROWS, device_kernel.COLUMNS, dtype=torch.float64, device=device)
            self._hashes = torch.empty(_ROWS, dtype=torch.int64, device=device)
        self._launch(torch.zeros(1, device=device), self._rows, self._hashes, 0, True)  # compiles, or fails, here
        self._waiting: list[tuple[Stats, Extent, Value | None]] = []
        self._starts: list[int] = []
        self._used = 0
        self._streams: set[Any] = set()

    def add(self, flat: torch.Tensor, extent: Extent, hashed: Value | None) -> Stats:
        """Launch the reduction of a contiguous tensor; with `hashed`, also the hash of its elements, for that value."""
        if self._used + self._row_count(flat.numel(), self._device) > _ROWS:
            self.fetch()
        start = self._used
        self._used += self._launch(flat, self._rows, self._hashes, start, hashed is not None)
        self._starts.append(start)
        self._streams.add(torch.cuda.current_stream(self._device))
        stats = Stats()
        self._waiting.append((stats, extent, hashed))
        return stats

    def fetch(self) -> None:
        """The one place that waits for the device. Where that has failed, the statistics say so."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        starts, self._starts = self._starts, []
        used, self._used = self._used, 0
        try:
            rows, hashes = self._to_host(used, any(value is not None for _, _, value in waiting))
        except RuntimeError as error:
            for stats, _, _ in waiting:
                stats.reason = describe_failure(error)
            raise
        numbers = merge_rows(rows, starts)
        sums = np.add.reduceat(hashes, starts) if hashes is not None else None
        for index, (stats, extent, value) in enumerate(waiting):
            fill_stats(stats, extent, numbers[index])
            if value is not None and sums is not None:
                value.digest = f"{int(sums[index]):016x}"

    def _to_host(self, used: int, has_hashes: bool) -> tuple[Any, Any]:
        streams, self._streams = self._streams, set()
        for stream in streams:
            stream.synchronize()
        hashes = self._hashes[:used].cpu().numpy().view(np.uint64) if has_hashes else None
        return self._rows[:used].cpu().numpy(), hashes


def merge_rows(rows: np.ndarray[Any, Any], starts: list[int]) -> list[list[float]]:
    """The rows of each value as one: max, min, sum, norm, NaN count, Inf count, sketch."""
    largest = np.maximum.reduceat(rows[:, 0], starts)
    smallest = np.minimum.reduceat(rows[:, 1], starts)
    total, squares, *others = np.add.reduceat(rows[:, 2:], starts, axis=0).T
    ends = np.where(np.isposinf(largest), largest, 0.0), np.where(np.isneginf(smallest), smallest, 0.0)
    with np.errstate(invalid="ignore"):  # the sum of both infinities is NaN
        total = total + ends[0] + ends[1]  # the kernel leaves infinities out of its sums
    columns = [largest, smallest, total, np.sqrt(squares) + ends[0] - ends[1], *others]
    result: list[list[float]] = np.stack(columns, axis=1).tolist()
    return result
