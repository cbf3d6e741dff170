"""Max, Min, Mean, Norm and sketch of a tensor, computed where it lives.

On the CPU the numbers are there at once. On a device rows of a preallocated buffer are filled by kernels that nobody
waits for, and all rows come to the host together, at `fetch`. NaN is left out of the first four and counted;
infinities count as values and are counted too. The magnitude stands for complex numbers. Small tensors are summed in
float64, larger ones in short rows of the tensor's own precision, and over the rows in float64: the error does not grow
with the size, and is below 1e-6 of the norm. What leaves the range in which that is right is done again in float64.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tensorprobe.capture import native
from tensorprobe.capture.torch.array_statistics import is_in_memory, reduce_array, sketch_flat, sketch_small
from tensorprobe.capture.torch.sketch import sketch_into
from tensorprobe.model.record import Stats, Value
from tensorprobe.store.sketch import BLOCK, COUNT, column_signs, finite_sketch

Row = list[Any]
"""Max, min, sum, norm, NaN count, Inf count, and the four numbers of the sketch."""

_ROW = 512
_WIDE = torch.float64
_CHUNK = (1 << 9) * BLOCK
_DEVICE_CHUNK = (1 << 13) * BLOCK  # bounds the memory that widening takes on a device
_COLUMNS = 6 + COUNT
_SMALL = 4096
_THREADED = 1 << 19
"""From so many elements on, the threads of torch are worth their calls."""
_EXACT = 2.0**52  # integers beyond lose digits in float64
_BUFFER_ROWS = 1024
NOTHING: Row = [-math.inf, math.inf, 0.0, 0.0, 0, 0, *[0.0] * COUNT]
_INT64_MIN = -(1 << 63)

_SMALLEST = {dtype: 1e4 * math.sqrt(torch.finfo(dtype).tiny) for dtype in (torch.float32, torch.float64)}
"""The dtypes that are summed as they are, and the size below which their squares lose digits."""
KINDS = {
    torch.float32: native.FLOAT32,
    torch.float64: native.FLOAT64,
    torch.bfloat16: native.BFLOAT16,
    torch.float16: native.FLOAT16,
}
"""What compiled code can read."""
_OVERFLOWING = (torch.float64, torch.complex128)
"""Squares of these can leave the range of float64."""


@dataclass(slots=True)
class Extent:
    """What the numbers of a reduction stand for."""

    dtype: torch.dtype
    count: int
    repeats: int = 1
    """How often each element that was reduced occurs: more than once in an expanded tensor."""
    zeros: int = 0
    """How many zeros there are besides: those that a sparse tensor does not store."""
    is_in_order: bool = True
    """Were all elements reduced, each in its place? Only then is there a sketch."""


class DeviceBuffer:
    """Rows of statistics on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.inference_mode(False):  # an inference tensor could not be written outside inference mode
            self._rows = torch.empty(_BUFFER_ROWS, _COLUMNS, dtype=_WIDE, device=device)
        self._used = 0
        self._waiting: list[tuple[Stats, Extent, range]] = []
        self._streams: set[Any] = set()

    def add(self, tensor: torch.Tensor, extent: Extent) -> Stats:
        """Launch the reductions of one tensor into the next rows."""
        chunks = in_order(tensor).split(_DEVICE_CHUNK) if extent.count else ()
        if self._used + len(chunks) > _BUFFER_ROWS:
            self.fetch()
        start = self._used
        for number, chunk in enumerate(chunks, start):
            reduce_into(chunk, self._rows[number])
            sketch_into(chunk, self._rows[number, 6:], (number - start) * _DEVICE_CHUNK)
        self._note_stream()
        self._used = start + len(chunks)
        stats = Stats()
        self._waiting.append((stats, extent, range(start, self._used)))
        return stats

    def fetch(self) -> None:
        """The one place that waits for the device. Where that has failed, the statistics say so."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        used, self._used = self._used, 0
        try:
            rows = self._rows_on_host(used)
        except BaseException as error:  # also Ctrl-C: nobody will ask for these again
            for stats, _, _ in waiting:
                stats.reason = describe_failure(error)
            raise
        numbers, bits = rows.tolist(), rows.view(torch.int64).tolist()
        for stats, extent, places in waiting:
            parts = [read_row(extent.dtype, numbers[place], bits[place]) for place in places]
            fill_stats(stats, extent, merge_rows(parts) if parts else NOTHING)

    def _note_stream(self) -> None:
        """The rows may be fetched by another thread, whose stream does not wait for this one by itself."""
        if not self._rows.is_cpu:
            self._streams.add(torch.get_device_module(self._device).current_stream(self._device))

    def _rows_on_host(self, used: int) -> torch.Tensor:
        streams, self._streams = self._streams, set()
        for stream in streams:
            stream.synchronize()
        return self._rows[:used].cpu()


def reduce_on_host(tensor: torch.Tensor, count: int) -> Row:
    """The numbers of a CPU tensor of `count` elements, at once."""
    found = reduce_natively(tensor, count)
    if found is not None:
        return found
    tensor = in_order(tensor).resolve_neg()
    if count <= _SMALL and not tensor.is_complex():
        small = reduce_small(tensor, count)
        if small is not None:
            return small
    if tensor.dtype not in _SMALLEST and tensor.is_floating_point() and tensor.element_size() < 4:
        tensor = tensor.float()
    row = reduce_finite(tensor) if tensor.dtype in _SMALLEST else None
    return row if row is not None else reduce_in_chunks(tensor)


def reduce_natively(tensor: torch.Tensor, count: int) -> Row | None:
    """By compiled code, where there is some for this dtype."""
    kind = KINDS.get(tensor.dtype)
    if kind is None or not native.is_compiled():
        return None
    line = tensor if tensor.is_contiguous() and not tensor.is_neg() else in_one_line(tensor.resolve_neg())
    threads = torch.get_num_threads() if count >= _THREADED else 1
    return native.reduce_memory(line.data_ptr(), count, kind, threads)


def summarize_line(address: int, extent: Extent, hashed: Value | None) -> Stats | None:
    """The statistics of a CPU tensor whose elements lie one after another, and its hash for `hashed`, by compiled code;
    None where there is none for it, or where more is to be said."""
    kind = KINDS.get(extent.dtype)
    if kind is None:
        return None
    threads = torch.get_num_threads() if extent.count >= _THREADED else 1
    stats = native.summarize_memory(address, extent.count, kind, threads)
    if stats is not None and hashed is not None:
        found = native.hash_memory(address, extent.count, 8 * extent.dtype.itemsize, 0)
        hashed.digest = f"{found:016x}"
    return stats


def sketch_on_host(tensor: torch.Tensor) -> list[float] | None:
    """The sketch alone."""
    found = reduce_natively(tensor, tensor.numel())
    if found is not None:
        return finite_sketch(found[6:])
    flat = in_order(tensor)
    if is_in_memory(flat) and flat.isfinite().all().item():
        return finite_sketch(sketch_flat(flat))
    sums = torch.zeros(COUNT, dtype=_WIDE)
    part = torch.empty(COUNT, dtype=_WIDE)
    for number, chunk in enumerate(flat.split(_CHUNK)):
        sketch_into(chunk, part, number * _CHUNK)
        sums += part
    return finite_sketch(sums.tolist())


class Scratch(threading.local):
    """Memory of each thread's own, that torch and numpy both look at."""

    def __init__(self) -> None:
        with torch.inference_mode(False):
            tensor = torch.empty(_SMALL, dtype=_WIDE)
        self.memory = tensor, tensor.numpy()


_scratch = Scratch()
_signs = column_signs()


def reduce_small(flat: torch.Tensor, count: int) -> Row | None:
    """A tensor of few elements, where the calls cost more than the work, and numpy's cost least. None where float64 is
    not exact enough, or not everything is finite."""
    tensor, array = _scratch.memory  # numpy() of the user's tensor would fix the size of its storage
    tensor[:count].copy_(flat)
    numbers = array[:count]
    squares = float(numbers.dot(numbers))
    largest, smallest = float(np.maximum.reduce(numbers)), float(np.minimum.reduce(numbers))
    if not squares < math.inf or (max(largest, -smallest) > _EXACT and is_integer(flat.dtype)):
        return None
    if squares < _SMALLEST[_WIDE] and (largest or smallest):
        return None
    sketch = _signs[:, :count].dot(numbers).tolist() if count <= BLOCK else sketch_small(numbers)
    return [largest, smallest, float(np.add.reduce(numbers)), math.sqrt(squares), 0, 0, *sketch]


def without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """An expanded tensor shows each of its elements many times; here they are once."""
    strides = tensor.stride()
    if 0 in strides:
        for axis, stride in enumerate(strides):
            if stride == 0 and tensor.shape[axis] > 1:
                tensor = tensor.narrow(axis, 0, 1)
    return tensor


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    """All elements in one line, in the order of their indices: a copy only where memory has another."""
    return tensor if tensor.dim() == 1 and tensor.is_contiguous() else tensor.reshape(-1)


def in_one_line(tensor: torch.Tensor) -> torch.Tensor:
    """The same for a kernel, which reads memory: a tensor that was expanded from one element stays one in a line."""
    return in_order(tensor).contiguous()


def reduce_finite(flat: torch.Tensor) -> Row | None:
    """The frequent case: everything is finite. None if it is not, or if the squares leave the range of the dtype."""
    if not is_in_memory(flat):
        return None
    is_threaded = flat.numel() >= _THREADED and torch.get_num_threads() > 1
    row = _reduce_threaded(flat) if is_threaded else reduce_array(flat)
    if row is None or (row[3] < _SMALLEST[flat.dtype] * math.sqrt(flat.numel()) and (row[0] or row[1])):
        return None
    return row


def _reduce_threaded(flat: torch.Tensor) -> Row | None:
    """By torch, with its threads; all but the sketch, for which numpy is as fast."""
    rest = flat.numel() % _ROW
    rows = (flat[:-rest] if rest else flat).view(-1, _ROW)
    norm = torch.linalg.vector_norm(torch.linalg.vector_norm(rows, dim=1), dtype=_WIDE).item()
    total = rows.sum(1).sum(dtype=_WIDE).item()
    if rest:
        tail = flat[-rest:].to(_WIDE)
        norm, total = math.hypot(norm, torch.linalg.vector_norm(tail).item()), total + tail.sum().item()
    if not (math.isfinite(norm) and math.isfinite(total)):
        return None
    return [flat.amax().item(), flat.amin().item(), total, norm, 0, 0, *sketch_flat(flat)]


def reduce_in_chunks(flat: torch.Tensor) -> Row:
    """Any dtype, with NaN and Inf counted, in float64; integers keep their exact extremes."""
    row = torch.empty(_COLUMNS, dtype=_WIDE, device=flat.device)
    rows = []
    for number, chunk in enumerate(flat.split(_CHUNK)):
        reduce_into(chunk, row)
        sketch_into(chunk, row[6:], number * _CHUNK)
        rows.append(read_row(flat.dtype, row.tolist(), row.view(torch.int64).tolist()))
    return merge_rows(rows)


def reduce_into(tensor: torch.Tensor, row: torch.Tensor) -> None:
    """One row of numbers but for the sketch, without a branch on a value: works on every device without waiting."""
    if tensor.dtype is torch.bool:
        _reduce_truths_into(tensor, row)
    elif is_integer(tensor.dtype):
        _reduce_integers_into(tensor, row)
    else:
        _reduce_reals_into(tensor, row)


def _reduce_truths_into(tensor: torch.Tensor, row: torch.Tensor) -> None:
    count = tensor.sum()
    row[0], row[1], row[2], row[3] = count > 0, count == tensor.numel(), count, count.to(_WIDE).sqrt()
    row[4:6] = 0


def _reduce_integers_into(tensor: torch.Tensor, row: torch.Tensor) -> None:
    """The extremes are put down as integers: float64 ends at 2**53."""
    is_unsigned = tensor.dtype is torch.uint64  # then they are shifted down by 2**63, which keeps the order
    whole = tensor.view(torch.int64) ^ _INT64_MIN if is_unsigned else tensor.to(torch.int64)
    wide = tensor.to(_WIDE)
    bits = row.view(torch.int64)
    bits[0], bits[1] = whole.amax(), whole.amin()
    row[2], row[3] = wide.sum(), torch.linalg.vector_norm(wide)
    row[4:6] = 0


def _reduce_reals_into(tensor: torch.Tensor, row: torch.Tensor) -> None:
    wide = tensor.to(torch.complex128).abs() if tensor.is_complex() else tensor.to(_WIDE)
    is_nan = wide.isnan()
    clean = wide.masked_fill(is_nan, 0.0)
    row[0] = wide.masked_fill(is_nan, -math.inf).amax()
    row[1] = wide.masked_fill(is_nan, math.inf).amin()
    row[2] = clean.sum()
    row[3] = _scaled_norm(clean) if tensor.dtype in _OVERFLOWING else torch.linalg.vector_norm(clean)
    row[4] = is_nan.sum()
    row[5] = wide.isinf().sum()


def _scaled_norm(numbers: torch.Tensor) -> torch.Tensor:
    """The norm where squares may be too large or too small for float64."""
    largest = numbers.abs().amax()
    scale = largest.masked_fill((largest == 0) | largest.isinf(), 1.0)
    return torch.linalg.vector_norm(numbers / scale) * scale


def is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def read_row(dtype: torch.dtype, numbers: list[float], bits: list[int]) -> Row:
    """A row on the host. The extremes of integers are in the bits."""
    if not is_integer(dtype):
        return numbers
    shift = _INT64_MIN if dtype is torch.uint64 else 0
    return [bits[0] - shift, bits[1] - shift, *numbers[2:]]


def merge_rows(rows: list[Row]) -> Row:
    """The numbers of the parts of a tensor as those of the whole."""
    if len(rows) == 1:
        return rows[0]
    largest, smallest, totals, norms, *others = zip(*rows, strict=True)
    return [max(largest), min(smallest), sum(totals), math.hypot(*norms), *map(sum, others)]


def fill_stats(stats: Stats, extent: Extent, row: Row) -> None:
    """The numbers of a row, as the words of the format."""
    largest, smallest, total, norm, nans, infs, *sketch = row
    if extent.is_in_order:
        stats.sketch = finite_sketch(sketch)
    if not (nans or infs or extent.zeros) and extent.repeats == 1 and extent.dtype.is_floating_point:
        stats.max, stats.min, stats.mean, stats.norm = largest, smallest, total / extent.count, norm
        return
    stats.nan_count, stats.inf_count = int(nans) * extent.repeats, int(infs) * extent.repeats
    count = (extent.count - int(nans)) * extent.repeats + extent.zeros
    if not count:
        stats.max = stats.min = stats.mean = stats.norm = math.nan
        return
    if extent.zeros:
        largest, smallest = max(largest, 0.0), min(smallest, 0.0)
    kind = bool if extent.dtype is torch.bool else int if is_integer(extent.dtype) else float
    stats.max, stats.min = kind(largest), kind(smallest)
    stats.mean, stats.norm = total / (count / extent.repeats), norm * math.sqrt(extent.repeats)


def describe_failure(error: BaseException) -> str:
    """Why there are no statistics, in one line."""
    return f"not computed: {str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}"[:200]
