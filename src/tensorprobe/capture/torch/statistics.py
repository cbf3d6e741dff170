"""Max, Min, Mean and Norm of a tensor, computed where it lives.

On the CPU the numbers are there at once. On a device a row of a preallocated buffer is filled by kernels that nobody
waits for, and all rows come to the host together, at `fetch`. NaN is left out of the four numbers and counted;
infinities count as values and are counted too. The magnitude stands for complex numbers. Sums are taken over short rows
in the tensor's own precision, and over the rows in float64: the error does not grow with the size.
"""

from __future__ import annotations

import math
import threading

import torch

from tensorprobe.model.record import Stats

_ROW = 512
_WIDE = torch.float64
_CHUNK = 1 << 20
_FAST_DTYPES = (torch.float32, torch.float64)
_COLUMNS = 6  # max, min, sum, sum of squares, NaN count, Inf count
_BUFFER_ROWS = 1024


class Reducer:
    """Statistics of tensors; those of device tensors are filled in by `fetch`."""

    def __init__(self) -> None:
        self._buffers: dict[torch.device, DeviceBuffer] = {}
        self._lock = threading.Lock()

    def reduce(self, tensor: torch.Tensor) -> Stats:
        """`tensor` is dense and detached."""
        if tensor.numel() == 0:
            return Stats(reason="empty")
        if tensor.device.type == "cpu":
            return reduce_on_host(tensor)
        with self._lock:
            buffer = self._buffers.get(tensor.device)
            if buffer is None:
                buffer = self._buffers[tensor.device] = DeviceBuffer(tensor.device)
            return buffer.add(tensor)

    def fetch(self) -> None:
        with self._lock:
            for buffer in self._buffers.values():
                buffer.fetch()


class DeviceBuffer:
    """Rows of statistics on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._rows = torch.empty(_BUFFER_ROWS, _COLUMNS, dtype=_WIDE, device=device)
        self._waiting: list[tuple[Stats, torch.dtype, int]] = []

    def add(self, tensor: torch.Tensor) -> Stats:
        """Launch the reductions of one tensor into the next row."""
        if len(self._waiting) == _BUFFER_ROWS:
            self.fetch()
        stats = Stats()
        reduce_into(tensor, self._rows[len(self._waiting)])
        self._waiting.append((stats, tensor.dtype, tensor.numel()))
        return stats

    def fetch(self) -> None:
        """The one place that waits for the device."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for (stats, dtype, count), row in zip(waiting, self._rows[: len(waiting)].tolist(), strict=True):
            fill_stats(stats, dtype, count, row)


def reduce_on_host(tensor: torch.Tensor) -> Stats:
    """The statistics of a CPU tensor, at once."""
    if tensor.dtype in _FAST_DTYPES and (rows := as_rows(tensor)) is not None:
        fast = _reduce_finite_rows(rows)
        if fast is not None:
            return fast
    return _reduce_in_chunks(tensor)


def as_rows(tensor: torch.Tensor) -> torch.Tensor | None:
    """A dense tensor as a matrix of short rows, without copying; None if that cannot be."""
    if not tensor.is_contiguous():
        strides = tensor.stride()
        order = sorted(range(tensor.dim()), key=lambda axis: (-strides[axis], tensor.shape[axis] == 1))
        tensor = tensor.permute(order)
        if not tensor.is_contiguous():
            return None
    count = tensor.numel()
    if count <= _ROW:
        return tensor.reshape(1, count)
    if count % _ROW == 0:
        return tensor.view(-1, _ROW)
    width = tensor.shape[-1]
    return tensor.view(-1, width) if 16 <= width <= 4 * _ROW else None


def _reduce_finite_rows(rows: torch.Tensor) -> Stats | None:
    """The frequent case: everything is finite. None if it is not, or if the sum of squares leaves the range of the
    dtype."""
    count = rows.numel()
    if rows.shape[0] == 1:
        norm = torch.linalg.vector_norm(rows).item()
        total = rows.sum().item()
    else:
        norm = torch.linalg.vector_norm(torch.linalg.vector_norm(rows, dim=1), dtype=_WIDE).item()
        total = rows.sum(1).sum(dtype=_WIDE).item()
    if not (math.isfinite(norm) and math.isfinite(total)):
        return None
    largest, smallest = rows.amax().item(), rows.amin().item()
    if norm < 1e-18 and (largest or smallest):
        return None  # squares this small have lost their digits, or vanished
    return Stats(max=largest, min=smallest, mean=total / count, norm=norm)


def _reduce_in_chunks(tensor: torch.Tensor) -> Stats:
    """Any dtype and layout, with NaN and Inf counted, in float64; integers keep their exact extremes."""
    flat = tensor.reshape(-1)
    row = torch.empty(_COLUMNS, dtype=_WIDE)
    rows = []
    for start in range(0, flat.numel(), _CHUNK):
        reduce_into(flat[start : start + _CHUNK], row)
        rows.append(row.tolist())
    stats = Stats()
    merged = [
        max(row[0] for row in rows),
        min(row[1] for row in rows),
        *(sum(row[i] for row in rows) for i in range(2, 6)),
    ]
    fill_stats(stats, tensor.dtype, tensor.numel(), merged)
    if not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype is not torch.bool:
        stats.max, stats.min = int(flat.max()), int(flat.min())  # float64 ends at 2**53
    return stats


def reduce_into(tensor: torch.Tensor, row: torch.Tensor) -> None:
    """One row of statistics, without a branch on a value: works on every device without waiting."""
    wide = tensor.abs().to(_WIDE) if tensor.is_complex() else tensor.to(_WIDE)
    is_nan = wide.isnan()
    clean = wide.masked_fill(is_nan, 0.0)
    row[0] = wide.masked_fill(is_nan, -math.inf).amax()
    row[1] = wide.masked_fill(is_nan, math.inf).amin()
    row[2] = clean.sum()
    row[3] = torch.linalg.vector_norm(clean).square() if clean.dtype is _WIDE else clean.square().sum()
    row[4] = is_nan.sum()
    row[5] = wide.isinf().sum()


def fill_stats(stats: Stats, dtype: torch.dtype, count: int, row: list[float]) -> None:
    """The numbers of a row, as the words of the format."""
    largest, smallest, total, squares, nans, infs = row
    stats.nan_count, stats.inf_count = int(nans), int(infs)
    valid = count - stats.nan_count
    if not valid:
        stats.max = stats.min = stats.mean = stats.norm = math.nan
        return
    stats.max, stats.min, stats.mean, stats.norm = largest, smallest, total / valid, math.sqrt(squares)
    if dtype is torch.bool:
        stats.max, stats.min = bool(largest), bool(smallest)
    elif not dtype.is_floating_point and not dtype.is_complex:
        stats.max, stats.min = int(largest), int(smallest)
