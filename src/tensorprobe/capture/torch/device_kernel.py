"""One pass over CUDA tensors: max, min, sum, sum of squares, counts of NaN and Inf, the sketch and the positional
hash, of many tensors in one launch.

Where they are is told by a table, a line of four whole numbers for each: its address, how many elements it has, its
first row, and how many programs work on it. Each program writes a row of its own; nothing is added atomically, so the
same tensor always gives the same bits. Imports triton, which comes with the CUDA builds of torch: only import this file
where it is there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

from tensorprobe.store import sketch

COLUMNS = 6 + sketch.COUNT
"""max, min, sum, sum of squares, NaN count, Inf count, and the four numbers of the sketch"""
FIELDS = 4
"""What the table says of each tensor."""
_WARPS = 8
_PROGRAMS_PER_PROCESSOR = 2
_A = tl.constexpr(0x9E3779B97F4A7C15)
_B = tl.constexpr(0xD6E8FEB86659FD93)
_WIDTH = tl.constexpr(sketch.BLOCK)
_LANES = tl.constexpr(1 << (sketch.BLOCK - 1).bit_length())
_COLUMNS = tl.constexpr(COLUMNS)
_HADAMARD = tl.constexpr(0x6CA0)
"""Four bits, one for each number of the sketch, of a column by its last two bits."""


@triton.jit
def _mix(number):  # type: ignore[no-untyped-def]
    """`store.sketch.mix`, of uint32."""
    number = number ^ (number >> 16)
    number = number * 0x7FEB352D
    number = number ^ (number >> 15)
    number = number * 0x846CA68B
    return number ^ (number >> 16)


@triton.jit  # type: ignore[untyped-decorator]
def _signed_sum(columns, bits, index: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.sum(tl.where(((bits >> index) & 1) != 0, -columns, columns), 0)


@triton.jit
def _store_sketch(place, folded, column):  # type: ignore[no-untyped-def]
    """The four numbers, of the sums over all rows of each column."""
    bits = ((column * 0 + _HADAMARD) >> (4 * (column & 3))) ^ _mix(column >> 2)
    tl.store(place, _signed_sum(folded, bits, 0))
    tl.store(place + 1, _signed_sum(folded, bits, 1))
    tl.store(place + 2, _signed_sum(folded, bits, 2))
    tl.store(place + 3, _signed_sum(folded, bits, 3))


@triton.jit  # type: ignore[untyped-decorator]
def _hash(value, index, BITS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """The share of each element: its bits, by its position."""
    if BITS == 16:
        word = value.to(tl.uint16, bitcast=True).to(tl.uint64)
    else:
        word = value.to(tl.uint32, bitcast=True).to(tl.uint64)
    mixed = word * _A
    mixed = mixed ^ (mixed >> 32)
    weight = (2 * index + 1).to(tl.uint64) * _B
    weight = (weight ^ (weight >> 32)) | 1
    return mixed * weight


@triton.jit  # type: ignore[untyped-decorator]
def _add_line(sums, values, line, index, inside, BITS: tl.constexpr, HAS_HASH: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """One more row of the sketch, lane by lane; infinities are counted and left out of the sums."""
    largest, smallest, total, squares, folded, nans, infs, hashed = sums
    value = tl.load(values + index, mask=inside, other=0.0)
    number = value.to(tl.float32)
    is_number = inside & (number == number)
    is_finite = tl.abs(number) < float("inf")
    largest = tl.maximum(largest, tl.where(is_number, number, float("-inf")))
    smallest = tl.minimum(smallest, tl.where(is_number, number, float("inf")))
    exact = tl.where(is_finite, number, 0.0).to(tl.float64)
    sign = 1.0 - 2.0 * (_mix(tl.cast(line, tl.uint32)) & 1).to(tl.float64)
    total += exact
    squares += exact * exact
    folded += exact * sign
    nans += (number != number).to(tl.int32)
    infs += (tl.abs(number) == float("inf")).to(tl.int32)
    if HAS_HASH:
        hashed += tl.where(inside, _hash(value, index, BITS), 0)
    return largest, smallest, total, squares, folded, nans, infs, hashed


@triton.jit  # type: ignore[untyped-decorator]
def _reduce(values, count, program, programs, row, hashes, BITS: tl.constexpr, HAS_HASH: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """The share of one program. Only the last row of the sketch may be short: the others are read without asking."""
    lane = tl.arange(0, _LANES)
    sums = (
        tl.full((_LANES,), float("-inf"), tl.float32),
        tl.full((_LANES,), float("inf"), tl.float32),
        tl.zeros((_LANES,), tl.float64),
        tl.zeros((_LANES,), tl.float64),
        tl.zeros((_LANES,), tl.float64),
        tl.zeros((_LANES,), tl.int32),
        tl.zeros((_LANES,), tl.int32),
        tl.zeros((_LANES,), tl.uint64),
    )
    lines = count // _WIDTH
    for line in range(program, lines, programs):
        sums = _add_line(sums, values, line, lane + line * _WIDTH, lane < _WIDTH, BITS, HAS_HASH)
    if lines % programs == program:
        index = lane + lines * _WIDTH
        sums = _add_line(sums, values, lines, index, (lane < _WIDTH) & (index < count), BITS, HAS_HASH)
    largest, smallest, total, squares, folded, nans, infs, hashed = sums
    tl.store(row, tl.max(largest, 0).to(tl.float64))
    tl.store(row + 1, tl.min(smallest, 0).to(tl.float64))
    tl.store(row + 2, tl.sum(total, 0))
    tl.store(row + 3, tl.sum(squares, 0))
    tl.store(row + 4, tl.sum(nans.to(tl.int64), 0).to(tl.float64))
    tl.store(row + 5, tl.sum(infs.to(tl.int64), 0).to(tl.float64))
    _store_sketch(row + 6, folded, lane.to(tl.uint32))
    if HAS_HASH:
        tl.store(hashes, tl.sum(hashed, 0).to(tl.int64, bitcast=True))


@triton.jit  # type: ignore[untyped-decorator]
def reduce_listed(  # type: ignore[no-untyped-def]
    table,
    rows,
    hashes,
    DTYPE: tl.constexpr,  # noqa: N803
    IS_ALIGNED: tl.constexpr,  # noqa: N803
    HAS_HASH: tl.constexpr,  # noqa: N803
):
    """All tensors of the table, which are of one dtype. `IS_ALIGNED`: each begins at a multiple of 16 bytes."""
    entry = table + 4 * tl.program_id(1)
    program = tl.program_id(0).to(tl.int64)
    programs = tl.load(entry + 3)
    if program < programs:
        values = tl.load(entry).to(tl.pointer_type(DTYPE))
        if IS_ALIGNED:
            values = tl.multiple_of(values, 16)
        row = tl.load(entry + 2) + program
        bits: tl.constexpr = DTYPE.primitive_bitwidth
        _reduce(values, tl.load(entry + 1), program, programs, rows + row * _COLUMNS, hashes + row, bits, HAS_HASH)


_MERGED_ROWS = tl.constexpr(512)


@triton.jit  # type: ignore[untyped-decorator]
def merge_listed(table, rows, hashes, merged, merged_hashes, HAS_HASH: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """The rows of each tensor of the table as one: its largest, its smallest, and the sums of all other columns, always
    in the same order."""
    value = tl.program_id(0).to(tl.int64)
    first = tl.load(table + 4 * value + 2)
    count = tl.load(table + 4 * value + 3)
    lane = tl.arange(0, _MERGED_ROWS)
    largest = tl.full((_MERGED_ROWS,), float("-inf"), tl.float64)
    smallest = tl.full((_MERGED_ROWS,), float("inf"), tl.float64)
    for start in range(0, count, _MERGED_ROWS):
        place = rows + (first + start + lane) * _COLUMNS
        largest = tl.maximum(largest, tl.load(place, mask=start + lane < count, other=float("-inf")))
        smallest = tl.minimum(smallest, tl.load(place + 1, mask=start + lane < count, other=float("inf")))
    tl.store(merged + value * _COLUMNS, tl.max(largest, 0))
    tl.store(merged + value * _COLUMNS + 1, tl.min(smallest, 0))
    for column in tl.static_range(2, _COLUMNS):
        sums = tl.zeros((_MERGED_ROWS,), tl.float64)
        for start in range(0, count, _MERGED_ROWS):
            place = rows + (first + start + lane) * _COLUMNS + column
            sums += tl.load(place, mask=start + lane < count, other=0.0)
        tl.store(merged + value * _COLUMNS + column, tl.sum(sums, 0))
    if HAS_HASH:
        hashed = tl.zeros((_MERGED_ROWS,), tl.int64)
        for start in range(0, count, _MERGED_ROWS):
            hashed += tl.load(hashes + first + start + lane, mask=start + lane < count, other=0)
        tl.store(merged_hashes + value, tl.sum(hashed, 0))


DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
"""Squares of these stay inside float64."""


@lru_cache
def processor_count(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def program_count(count: int, processors: int) -> int:
    """How many programs, and so rows, a tensor of `count` elements takes."""
    return min(-(-count // sketch.BLOCK), _PROGRAMS_PER_PROCESSOR * processors)


class Launcher:
    """Launches compiled kernels. Triton's own way looks at each argument again, for several times as long, and tells
    the hooks of profilers of a kernel that is none of the program's."""

    def __init__(self, table: torch.Tensor, rows: torch.Tensor, hashes: torch.Tensor) -> None:
        self._memory = table, rows, hashes
        self._table, self._rows, self._hashes = (tensor.data_ptr() for tensor in self._memory)
        self._device = device = rows.device
        entries = len(table)  # what a merge needs is there before the program may have used up the memory
        self._merged = torch.empty(entries, COLUMNS, dtype=torch.float64, device=device)
        self._merged_hashes = torch.empty(entries, dtype=torch.int64, device=device)
        self._table_there = torch.empty(entries, FIELDS, dtype=torch.int64, device=device)
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def launch(self, kind: tuple[torch.dtype, bool, bool], first: int, values: int, programs: int, stream: int) -> None:
        """Reduce `values` tensors, those of the table from `first` on, the largest by `programs`. `kind`: their dtype;
        are all aligned; are they hashed? Nobody waits."""
        compiled = self._compiled.get(kind)
        if compiled is None:
            compiled = self._compiled[kind] = self._compile(kind)
        run, function, metadata, constants = compiled
        table = self._table + 8 * FIELDS * first
        run(
            programs,
            values,
            1,
            stream,
            function,
            metadata,
            None,
            None,
            None,
            table,
            self._rows,
            self._hashes,
            *constants,
        )

    def merge(self, values: int, has_hash: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """The first `values` tensors of the table, whose reductions are over: a row for each, and its hash. They are
        there until the next merge."""
        with torch.cuda.device(self._device):
            table, rows, row_hashes = self._memory
            self._table_there[:values].copy_(table[:values])
            merge_listed[(values, 1, 1)](
                self._table_there, rows, row_hashes, self._merged, self._merged_hashes, has_hash
            )
        return self._merged[:values], self._merged_hashes[: values if has_hash else 0]

    def _compile(self, kind: tuple[torch.dtype, bool, bool]) -> Any:
        """On a table of nothing: no program finds work in it."""
        constants = (DTYPES[kind[0]], *kind[1:])
        with torch.cuda.device(self._device):
            table = torch.zeros(FIELDS, dtype=torch.int64, device=self._device)
            kernel = reduce_listed[(1, 1, 1)](table, *self._memory[1:], *constants, num_warps=_WARPS)
        return kernel.run, kernel.function, kernel.packed_metadata, constants
