"""Statistics and hashes of CUDA tensors by one kernel, told by a table where they are; the numbers come to the host
together, at `fetch`.

The table is in memory of the host that the device reads by itself: nothing is copied for a launch, and a line of it is
written again only after a fetch, when every launch that reads it is over.
"""

from __future__ import annotations

import importlib.util
import logging
import struct
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from tensorprobe.capture.torch.statistics import Extent, describe_failure, fill_stats, in_one_line
from tensorprobe.model.record import Stats, Value

logger = logging.getLogger("tensorprobe")

_ROWS = 1 << 16
_ENTRIES = 1 << 12
_pack_entry = struct.Struct("qqqq").pack_into
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # only where torch was built for CUDA
_ALIGNMENT = 16


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

        self._row_count = device_kernel.program_count
        self._processors = device_kernel.processor_count(device)
        self.dtypes = frozenset(device_kernel.DTYPES)
        self._device = device
        with torch.inference_mode(False):  # an inference tensor could not be written outside inference mode
            rows = self._rows = torch.empty(_ROWS, device_kernel.COLUMNS, dtype=torch.float64, device=device)
            hashes = self._hashes = torch.empty(_ROWS, dtype=torch.int64, device=device)
            table = torch.zeros(_ENTRIES, device_kernel.FIELDS, dtype=torch.int64, pin_memory=True)
        self._lines = memoryview(table.numpy()).cast("B")
        self._launcher = device_kernel.Launcher(table, rows, hashes)
        self._waiting: list[tuple[Stats, Extent, Value | None]] = []
        self._starts: list[int] = []
        self._used = 0
        self._streams: dict[int, Any] = {}
        self.add(torch.zeros(1, device=device), Extent(torch.float32, 1), Value(None))  # compiles, or fails, here
        self.fetch()

    def add(self, tensor: torch.Tensor, extent: Extent, hashed: Value | None) -> Stats:
        """Launch the reduction of a tensor; with `hashed`, also the hash of its elements, for that value. Elements that
        are not in one line in memory are copied."""
        line = tensor if tensor.is_contiguous() else in_one_line(tensor)
        count, address, entry = line.numel(), line.data_ptr(), len(self._waiting)
        programs = self._row_count(count, self._processors)
        if self._used + programs > _ROWS or entry == _ENTRIES:
            self.fetch()
            entry = 0
        _pack_entry(self._lines, entry * 32, address, count, self._used, programs)
        self._launch((line.dtype, address % _ALIGNMENT == 0, hashed is not None), entry, programs)
        stats = Stats()
        self._waiting.append((stats, extent, hashed))
        self._starts.append(self._used)
        self._used += programs
        return stats

    def _launch(self, kind: tuple[torch.dtype, bool, bool], entry: int, programs: int) -> None:
        assert _raw_stream is not None
        index = self._device.index
        stream = _raw_stream(index)
        if stream not in self._streams:
            self._streams[stream] = torch.cuda.current_stream(self._device)
        with nullcontext() if torch.cuda.current_device() == index else torch.cuda.device(index):
            self._launcher.launch(kind, entry, 1, programs, stream)

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
        streams, self._streams = self._streams, {}
        for stream in streams.values():
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
