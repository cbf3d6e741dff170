"""Statistics of tensors, by what is fastest where they live: numpy and torch on the host, one kernel or torch on a
device."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from tensorprobe.capture.torch.kernel_buffer import KernelBuffer, make_kernel_buffer
from tensorprobe.capture.torch.statistics import (
    NOTHING,
    DeviceBuffer,
    Extent,
    describe_failure,
    fill_stats,
    reduce_on_host,
    sketch_on_host,
    summarize_line,
    without_repeats,
)
from tensorprobe.model.record import Stats, Value

_MAX_COPIED = 1 << 18
"""An expanded tensor of more elements is not written out for a sketch: its memory may be a single element."""


class Reducer:
    """Statistics of tensors; those of device tensors are filled in by `fetch`."""

    def __init__(self) -> None:
        self._buffers: dict[torch.device, DeviceBuffer] = {}
        self._kernels: dict[torch.device, KernelBuffer | None] = {}
        self._lock = threading.RLock()  # a signal handler that ends the run may fetch in the middle of `reduce`

    def can_hash(self, tensor: torch.Tensor) -> bool:
        """Can `reduce` bring the hash of this tensor as well, in the same pass?"""
        return self._kernel_for(tensor) is not None

    def reduce(self, tensor: torch.Tensor, zeros: int = 0, hashed: Value | None = None) -> Stats:
        """`tensor` is dense and detached; `zeros` more belong to the value. What cannot be computed says why. `hashed`
        is the value that the hash of the tensor is for, where `can_hash` says so."""
        total = tensor.numel()
        if total + zeros == 0:
            return Stats(reason="empty")
        try:
            distinct = without_repeats(tensor) if total > _MAX_COPIED else tensor
            count = distinct.numel()
            extent = Extent(tensor.dtype, count, total // count if count else 1, zeros, count == total and not zeros)
            if tensor.is_cpu:
                stats = Stats()
                fill_stats(stats, extent, reduce_on_host(distinct, count) if count else NOTHING)
                return stats
            with self._lock:
                kernel = self._kernel_for(tensor) if count else None
                if kernel is None:
                    return self._buffer_on(tensor.device).add(distinct, extent)
                if hashed is None:
                    return kernel.add(distinct, extent, None)
                return kernel.add(tensor, Extent(tensor.dtype, total), hashed)
        except Exception as error:  # a dtype without arithmetic (bits8, uint4), no memory left
            return Stats(reason=describe_failure(error))

    def reduce_line(self, tensor: torch.Tensor, extent: Extent, hashed: Value | None = None) -> Stats | None:
        """The same for elements that lie one after another, in the usual case; None in any other."""
        if tensor.is_cpu:
            return summarize_line(tensor.data_ptr(), extent, hashed)
        kernel = self._kernels.get(tensor.device)
        if kernel is None or extent.dtype not in kernel.dtypes:
            return None
        try:
            with self._lock:
                return kernel.add_line(tensor.data_ptr(), extent, hashed)
        except Exception as error:  # no memory left
            return Stats(reason=describe_failure(error))

    def reorder(self, stats: Stats, tensor: torch.Tensor) -> Stats:
        """`stats` are of the same elements in another order: on the host only the sketch is computed again. On a device
        they are not known yet."""
        if not tensor.is_cpu:
            return self.reduce(tensor)
        try:
            return stats.reordered(sketch_on_host(tensor))
        except Exception:  # the numbers of the same elements were computed before
            return stats.reordered(None)

    def take(self) -> bool:
        """What was launched so far is what a `fetch` by another thread waits for, not what comes from now on; False
        where nothing was."""
        with self._lock:
            kernels = self._list_kernels()
            for kernel in kernels:
                kernel.take(waits=False)
        return any(kernel.is_waited_for for kernel in kernels)

    def fetch(self) -> None:
        """A device that fails takes no other with it: its error is raised when all were asked. While a kernel is waited
        for, others may launch more."""
        failures = [_try(kernel.fetch_taken) for kernel in self._list_kernels()]
        with self._lock:
            kernels = self._list_kernels()
            for kernel in kernels:
                kernel.take(waits=True)
            failures += [_try(buffer.fetch) for buffer in self._buffers.values()]
        failures += [_try(kernel.fetch_taken) for kernel in kernels]
        for failure in failures:
            if failure is not None:
                raise failure

    def _list_kernels(self) -> list[KernelBuffer]:
        return [kernel for kernel in list(self._kernels.values()) if kernel is not None]

    def _kernel_for(self, tensor: torch.Tensor) -> KernelBuffer | None:
        if not tensor.is_cuda or not tensor.numel():
            return None
        if tensor.device not in self._kernels:
            self._kernels[tensor.device] = make_kernel_buffer(tensor.device)
        kernel = self._kernels[tensor.device]
        return kernel if kernel is not None and tensor.dtype in kernel.dtypes else None

    def _buffer_on(self, device: torch.device) -> DeviceBuffer:
        buffer = self._buffers.get(device)
        if buffer is None:
            buffer = self._buffers[device] = DeviceBuffer(device)
        return buffer


def _try(action: Callable[[], None]) -> Exception | None:
    try:
        action()
    except Exception as error:
        return error
    return None
