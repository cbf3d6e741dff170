"""One pass over CUDA tensors: max, min, sum, sum of squares, counts of NaN and Inf, the sketch and the positional
hash.

Each program writes a row of its own; nothing is added atomically, so the same tensor always gives the same bits.
Elements that lie in lines with gaps between them, as those of a part of a tensor or of a transposed one, are read where
they are. Imports triton, which comes with the CUDA builds of torch: only import this file where it is there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tensorprobe.capture.torch.float_kernel import reduce_floats
from tensorprobe.capture.torch.integer_kernel import reduce_integers
from tensorprobe.store import sketch

COLUMNS = 6 + sketch.COUNT
"""max, min, sum, sum of squares, NaN count, Inf count, and the four numbers of the sketch"""
FIELDS = 3
"""What a table says of each tensor for `merge_listed`: its first row, how many rows it has, and whether it is of
integers, whose extremes are put down as such: float64 ends at 2**53."""
_COLUMNS = tl.constexpr(COLUMNS)
_FIELDS = tl.constexpr(FIELDS)
UNSPECIALIZED = ("address", "count", "row", "programs", "size_1", "size_2", "size_3", "step_0", "step_1", "step_2")
"""A kernel of them is right for all numbers, not only for those that it was compiled with."""


@triton.jit(do_not_specialize=UNSPECIALIZED)  # type: ignore[untyped-decorator]
def reduce_tensor(  # type: ignore[no-untyped-def]
    address,
    count,
    row,
    programs,
    size_1,
    size_2,
    size_3,
    step_0,
    step_1,
    step_2,
    rows,
    hashes,
    DTYPE: tl.constexpr,  # noqa: N803
    IS_ALIGNED: tl.constexpr,  # noqa: N803
    DIMENSIONS: tl.constexpr,  # noqa: N803
    HAS_HASH: tl.constexpr,  # noqa: N803
):
    """One tensor, by this many programs, from this row on. `IS_ALIGNED`: it begins at a multiple of 16 bytes, and so
    does all that is read at once. `DIMENSIONS`: 1 where its elements lie one after another, else they lie as the sizes
    and steps say (`kernel_launch.Strides`)."""
    program = tl.program_id(0).to(tl.int64)
    if program < programs:
        form = (size_1, size_2, size_3, step_0, step_1, step_2)
        place = rows + (row + program) * _COLUMNS
        hash_place = hashes + row + program
        is_truth: tl.constexpr = tl.int1 == DTYPE
        kind: tl.constexpr = tl.int8 if is_truth else DTYPE
        bits: tl.constexpr = kind.primitive_bitwidth
        values = address.to(tl.pointer_type(kind))
        if IS_ALIGNED:
            values = tl.multiple_of(values, 16)
        if kind.is_floating():
            reduce_floats(
                values, form, count, program, programs, place, hash_place, bits, IS_ALIGNED, DIMENSIONS, HAS_HASH
            )
        else:
            is_shifted: tl.constexpr = tl.uint64 == DTYPE
            reduce_integers(
                values,
                form,
                count,
                program,
                programs,
                place,
                hash_place,
                bits,
                is_shifted,
                is_truth,
                DIMENSIONS,
                HAS_HASH,
            )


_MERGED_ROWS = tl.constexpr(512)


@triton.jit  # type: ignore[untyped-decorator]
def merge_listed(table, rows, hashes, merged, merged_hashes, HAS_HASH: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """The rows of each tensor of the table as one: its largest, its smallest, and the sums of all other columns, always
    in the same order."""
    value = tl.program_id(0).to(tl.int64)
    first = tl.load(table + _FIELDS * value)
    count = tl.load(table + _FIELDS * value + 1)
    lane = tl.arange(0, _MERGED_ROWS)
    if tl.load(table + _FIELDS * value + 2) == 0:
        largest = tl.full((_MERGED_ROWS,), float("-inf"), tl.float64)
        smallest = tl.full((_MERGED_ROWS,), float("inf"), tl.float64)
        for start in range(0, count, _MERGED_ROWS):
            place = rows + (first + start + lane) * _COLUMNS
            largest = tl.maximum(largest, tl.load(place, mask=start + lane < count, other=float("-inf")))
            smallest = tl.minimum(smallest, tl.load(place + 1, mask=start + lane < count, other=float("inf")))
        tl.store(merged + value * _COLUMNS, tl.max(largest, 0))
        tl.store(merged + value * _COLUMNS + 1, tl.min(smallest, 0))
    else:
        most = tl.full((_MERGED_ROWS,), -0x8000000000000000, tl.int64)
        least = tl.full((_MERGED_ROWS,), 0x7FFFFFFFFFFFFFFF, tl.int64)
        integers = rows.to(tl.pointer_type(tl.int64), bitcast=True)
        for start in range(0, count, _MERGED_ROWS):
            place = integers + (first + start + lane) * _COLUMNS
            most = tl.maximum(most, tl.load(place, mask=start + lane < count, other=-0x8000000000000000))
            least = tl.minimum(least, tl.load(place + 1, mask=start + lane < count, other=0x7FFFFFFFFFFFFFFF))
        tl.store(merged + value * _COLUMNS, tl.max(most, 0).to(tl.float64, bitcast=True))
        tl.store(merged + value * _COLUMNS + 1, tl.min(least, 0).to(tl.float64, bitcast=True))
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


DTYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.bool: tl.int1,
    torch.int8: tl.int8,
    torch.int16: tl.int16,
    torch.int32: tl.int32,
    torch.int64: tl.int64,
    torch.uint8: tl.uint8,
    torch.uint16: tl.uint16,
    torch.uint32: tl.uint32,
    torch.uint64: tl.uint64,
}
"""Squares of these stay inside float64."""
