"""Statistics and hashes of CUDA tensors by one kernel; the numbers come to the host together, at `fetch`."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

import numpy as np
import torch

from tensorprobe.capture.torch.statistics import Extent, describe_failure, fill_stats
from tensorprobe.model.record import Stats, Value

logger = logging.getLogger("tensorprobe")

_ROWS = 1 << 18
_VALUES = 1 << 12
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # only where torch was built for CUDA
_current_device = getattr(torch._C, "_cuda_getDevice", None)
_ALIGNMENT = 16


Strides = tuple[int, int, int, int, int, int]
"""`device_kernel.Strides`, which is imported only where there is a device."""


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
        self._find_strides = device_kernel.find_strides
        self._no_strides = device_kernel.NO_STRIDES
        self._processors = device_kernel.processor_count(device)
        self.dtypes = frozenset(device_kernel.DTYPES)
        self._device = device
        with torch.inference_mode(False):  # an inference tensor could not be written outside inference mode
            rows = torch.empty(_ROWS, device_kernel.COLUMNS, dtype=torch.float64, device=device)
            hashes = torch.empty(_ROWS, dtype=torch.int64, device=device)
            self._launcher = device_kernel.Launcher(rows, hashes, _VALUES)
        self._waiting: list[tuple[Stats, Extent, Value | None, int, int]] = []
        """With the first row of each, and the number of its rows."""
        self._used = 0
        self._streams: dict[int, Any] = {}
        self.add(torch.zeros(1, device=device), Extent(torch.float32, 1), Value(None))  # compiles, or fails, here
        self.fetch()

    def add(self, tensor: torch.Tensor, extent: Extent, hashed: Value | None) -> Stats:
        """Launch the reduction of a tensor; with `hashed`, also the hash of its elements, for that value. Elements that
        are in no lines that can be read as they are, are copied."""
        if not tensor.is_contiguous():
            strides = self._find_strides(tensor.shape, tensor.stride(), tensor.element_size())
            if strides is not None:
                return self.add_line(tensor.data_ptr(), extent, hashed, strides)
            tensor = tensor.contiguous()
        return self.add_line(tensor.data_ptr(), extent, hashed)

    def add_line(self, address: int, extent: Extent, hashed: Value | None, strides: Strides | None = None) -> Stats:
        """The same for elements that lie one after another, from this address on; or as `strides` say."""
        count = extent.count
        programs = self._row_count(count, self._processors)
        if self._used + programs > _ROWS or len(self._waiting) == _VALUES:
            self.fetch()
        is_aligned = address % _ALIGNMENT == 0
        kind = (extent.dtype, is_aligned, strides is not None, hashed is not None)
        self._launch(kind, (address, count, self._used, programs), strides or self._no_strides)
        stats = Stats()
        self._waiting.append((stats, extent, hashed, self._used, programs))
        self._used += programs
        return stats

    def _launch(self, kind: Any, line: tuple[int, int, int, int], strides: Strides) -> None:
        assert _raw_stream is not None and _current_device is not None
        index = self._device.index
        stream = _raw_stream(index)
        if stream not in self._streams:
            self._streams[stream] = torch.cuda.current_stream(self._device)
        if _current_device() == index:
            self._launcher.launch(kind, line, strides, stream)
            return
        with torch.cuda.device(index):
            self._launcher.launch(kind, line, strides, stream)

    def fetch(self) -> None:
        """The one place that waits for the device. Where that has failed, the statistics say so."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        self._used = 0
        try:
            places = torch.tensor([entry[3:] for entry in waiting], dtype=torch.int64)
            rows, hashes = self._to_host(places, any(entry[2] is not None for entry in waiting))
        except BaseException as error:  # also Ctrl-C: nobody will ask for these again
            for stats, *_ in waiting:
                stats.reason = describe_failure(error)
            raise
        numbers = finish_rows(rows)
        for index, (stats, extent, value, *_) in enumerate(waiting):
            fill_stats(stats, extent, numbers[index])
            if value is not None:
                value.digest = f"{int(hashes[index]):016x}"

    def _to_host(self, places: torch.Tensor, has_hashes: bool) -> tuple[Any, Any]:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.synchronize()
        with torch.inference_mode(False):
            merged, hashes = self._launcher.merge(places, has_hashes)
        return merged.cpu().numpy(), hashes.cpu().numpy().view(np.uint64)


def finish_rows(rows: np.ndarray[Any, Any]) -> list[list[float]]:
    """A row of each value: max, min, sum, norm, NaN count, Inf count, sketch. The kernel leaves infinities out of its
    sums, and gives the sum of squares."""
    largest, smallest, total, squares, *others = rows.T
    ends = np.where(np.isposinf(largest), largest, 0.0), np.where(np.isneginf(smallest), smallest, 0.0)
    with np.errstate(invalid="ignore"):  # the sum of both infinities is NaN
        total = total + ends[0] + ends[1]
    columns = [largest, smallest, total, np.sqrt(squares) + ends[0] - ends[1], *others]
    result: list[list[float]] = np.stack(columns, axis=1).tolist()
    return result
