"""Statistics and hashes of CUDA tensors by one kernel; the numbers come to the host together, at `fetch`."""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensorprobe.capture.torch.statistics import Extent, describe_failure, fill_stats, is_integer, read_row
from tensorprobe.model.record import Stats, Value

if TYPE_CHECKING:
    from tensorprobe.capture.torch.kernel_launch import Strides

logger = logging.getLogger("tensorprobe")

_ROWS = 1 << 18
_VALUES = 1 << 12
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # only where torch was built for CUDA
_current_device = getattr(torch._C, "_cuda_getDevice", None)
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
    """Launches the kernel on one device. While one batch of values comes to the host, the next one is filled."""

    def __init__(self, device: torch.device) -> None:
        from tensorprobe.capture.torch import device_kernel, kernel_launch

        self._row_count = kernel_launch.program_count
        self._find_strides = kernel_launch.find_strides
        self._no_strides = kernel_launch.NO_STRIDES
        self._processors = kernel_launch.processor_count(device)
        self.dtypes = frozenset(device_kernel.DTYPES)
        self._device = device
        side = torch.cuda.Stream(device)
        self._batches = [Batch(device, side) for _ in range(2)]
        self._taken: deque[Batch] = deque()
        for hashed in (Value(None), None):  # compiles, or fails, here
            self.add(torch.zeros(1, device=device), Extent(torch.float32, 1), hashed)
            self.fetch()

    @property
    def is_waited_for(self) -> bool:
        """Is there something to fetch?"""
        return bool(self._taken or self._batches[0].waiting)

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
        programs = self._row_count(extent.count, self._processors)
        if not self._batches[0].has_room(programs):
            self.fetch()
        batch = self._batches[0]
        strides = strides or self._no_strides
        kind = (extent.dtype, address % _ALIGNMENT == 0, strides[0], hashed is not None)
        self._launch(batch, kind, (address, extent.count, batch.used, programs), strides)
        return batch.add(extent, hashed, programs)

    def _launch(self, batch: Batch, kind: Any, line: tuple[int, int, int, int], strides: Strides) -> None:
        assert _raw_stream is not None and _current_device is not None
        index = self._device.index
        stream = _raw_stream(index)
        if stream not in batch.streams:
            batch.streams[stream] = torch.cuda.current_stream(self._device)
        if _current_device() == index:
            batch.launcher.launch(kind, line, strides, stream)
            return
        with torch.cuda.device(index):
            batch.launcher.launch(kind, line, strides, stream)

    def take(self, *, waits: bool) -> None:
        """What was launched so far is fetched next; what comes from now on goes into another batch. Where that one is
        not free yet, this waits for it, or does nothing."""
        filled, other = self._batches
        if filled.waiting and (waits or other.is_free):
            if not other.is_free:
                with suppress(Exception):  # its statistics say why
                    self.fetch_taken()  # whoever would come for it may wait for us
            other.wait_until_free()
            self._batches.reverse()
            try:
                filled.mark()
            finally:
                self._taken.append(filled)

    def fetch(self) -> None:
        """Wait for all that was launched."""
        self.take(waits=True)
        self.fetch_taken()

    def fetch_taken(self) -> None:
        """Wait for all that was taken."""
        while True:
            try:
                batch = self._taken.popleft()
            except IndexError:  # another thread may have got the last one
                return
            batch.fetch()


class Batch:
    """Rows that the kernel fills. Each value takes as many rows as programs ran on it."""

    def __init__(self, device: torch.device, side: torch.cuda.Stream) -> None:
        from tensorprobe.capture.torch import device_kernel, kernel_launch

        with torch.inference_mode(False):  # an inference tensor could not be written outside inference mode
            rows = torch.empty(_ROWS, device_kernel.COLUMNS, dtype=torch.float64, device=device)
            hashes = torch.empty(_ROWS, dtype=torch.int64, device=device)
            self.launcher = kernel_launch.Launcher(rows, hashes, _VALUES)
        side.wait_stream(torch.cuda.current_stream(device))
        self._side = side
        """Fetches do not wait for what the program launches meanwhile."""
        self.waiting: list[tuple[Stats, Extent, Value | None, int, int]] = []
        """With the first row of each, and the number of its rows."""
        self.used = 0
        self.streams: dict[int, Any] = {}
        self._events: list[Any] = []
        self._failure: Exception | None = None
        self._is_free = threading.Event()
        self._is_free.set()

    def has_room(self, rows: int) -> bool:
        return self.used + rows <= _ROWS and len(self.waiting) < _VALUES

    def add(self, extent: Extent, hashed: Value | None, rows: int) -> Stats:
        """A value that was launched."""
        stats = Stats()
        self.waiting.append((stats, extent, hashed, self.used, rows))
        self.used += rows
        return stats

    def mark(self) -> None:
        """Nothing more is launched into it before it was fetched."""
        self._is_free.clear()
        streams, self.streams = self.streams, {}
        try:
            self._events = [stream.record_event() for stream in streams.values()]
        except Exception as error:  # the device is lost, which `fetch` says
            self._failure = error

    @property
    def is_free(self) -> bool:
        return self._is_free.is_set()

    def wait_until_free(self) -> None:
        """Until another thread has fetched it."""
        self._is_free.wait()

    def fetch(self) -> None:
        """The one place that waits for the device. Where that has failed, the statistics say so."""
        waiting = self.waiting
        try:
            rows, hashes = self._to_host(any(entry[2] is not None for entry in waiting))
        except BaseException as error:  # also Ctrl-C: nobody will ask for these again
            for stats, *_ in waiting:
                stats.reason = describe_failure(error)
            raise
        finally:
            self.waiting, self.used = [], 0
            self._is_free.set()
        numbers = finish_rows(rows, [is_integer(entry[1].dtype) for entry in waiting])
        bits = rows[:, :2].copy().view(np.int64).tolist()
        for index, (stats, extent, value, *_) in enumerate(waiting):
            fill_stats(stats, extent, read_row(extent.dtype, numbers[index], bits[index]))
            if value is not None:
                value.digest = f"{int(hashes[index]):016x}"

    def _to_host(self, has_hashes: bool) -> tuple[Any, Any]:
        events, self._events = self._events, []
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        for event in events:
            event.synchronize()
        with torch.inference_mode(False), torch.cuda.stream(self._side):
            places = [(first, rows, is_integer(extent.dtype)) for _, extent, _, first, rows in self.waiting]
            merged, hashes = self.launcher.merge(torch.tensor(places, dtype=torch.int64), has_hashes)
            return merged.cpu().numpy(), hashes.cpu().numpy().view(np.uint64)


def finish_rows(rows: np.ndarray[Any, Any], are_integers: list[bool]) -> list[list[float]]:
    """A row of each value: max, min, sum, norm, NaN count, Inf count, sketch. The kernel leaves infinities out of its
    sums, and gives the sum of squares. The extremes of integers are in the bits of `rows`, not here."""
    largest, smallest, total, squares, *others = rows.T
    largest, smallest = np.where(are_integers, 0.0, largest), np.where(are_integers, 0.0, smallest)
    ends = np.where(np.isposinf(largest), largest, 0.0), np.where(np.isneginf(smallest), smallest, 0.0)
    with np.errstate(invalid="ignore"):  # the sum of both infinities is NaN
        total = total + ends[0] + ends[1]
    columns = [largest, smallest, total, np.sqrt(squares) + ends[0] - ends[1], *others]
    result: list[list[float]] = np.stack(columns, axis=1).tolist()
    return result
