"""One pass over a CUDA tensor: max, min, sum, sum of squares, counts of NaN and Inf, the sketch and the positional
hash, in one launch.

Each program writes a row of its own; nothing is added atomically, so the same tensor always gives the same bits.
Imports triton, which comes with the CUDA builds of torch: only import this file where it is there.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl

from tensorprobe.store import sketch

COLUMNS = 6 + sketch.COUNT
"""max, min, sum, sum of squares, NaN count, Inf count, and the four numbers of the sketch"""
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
    bits = (_HADAMARD >> (4 * (column & 3))).to(tl.uint32) ^ _mix(column >> 2)
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
def _reduce(values, rows, hashes, count, first_row, BITS: tl.constexpr, HAS_HASH: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Each program adds up rows of the sketch, lane by lane; infinities are counted and left out of the sums."""
    program = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, _LANES)
    largest = tl.full((_LANES,), float("-inf"), tl.float32)
    smallest = tl.full((_LANES,), float("inf"), tl.float32)
    total = tl.zeros((_LANES,), tl.float64)
    squares = tl.zeros((_LANES,), tl.float64)
    folded = tl.zeros((_LANES,), tl.float64)
    nans = tl.zeros((_LANES,), tl.int32)
    infs = tl.zeros((_LANES,), tl.int32)
    hashed = tl.zeros((_LANES,), tl.uint64)
    for line in range(program, tl.cdiv(count, _WIDTH), tl.num_programs(0)):
        index = line * _WIDTH + lane
        inside = (lane < _WIDTH) & (index < count)
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
    row = rows + (first_row + program) * _COLUMNS
    tl.store(row, tl.max(largest, 0).to(tl.float64))
    tl.store(row + 1, tl.min(smallest, 0).to(tl.float64))
    tl.store(row + 2, tl.sum(total, 0))
    tl.store(row + 3, tl.sum(squares, 0))
    tl.store(row + 4, tl.sum(nans.to(tl.int64), 0).to(tl.float64))
    tl.store(row + 5, tl.sum(infs.to(tl.int64), 0).to(tl.float64))
    _store_sketch(row + 6, folded, lane.to(tl.uint32))
    if HAS_HASH:
        tl.store(hashes + first_row + program, tl.sum(hashed, 0).to(tl.int64, bitcast=True))


DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""Squares of these stay inside float64."""


@lru_cache
def processor_count(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def program_count(count: int, device: torch.device) -> int:
    """How many programs, and so rows, a tensor of `count` elements takes."""
    return min(-(-count // sketch.BLOCK), _PROGRAMS_PER_PROCESSOR * processor_count(device))


def launch(values: torch.Tensor, rows: torch.Tensor, hashes: torch.Tensor, first_row: int, has_hash: bool) -> int:
    """Reduce `values`, which is contiguous and of one of DTYPES, into the rows from `first_row` on; returns how many
    rows that takes. Nobody waits."""
    count, bits = values.numel(), 8 * values.element_size()
    programs = program_count(count, values.device)
    with torch.cuda.device(values.device):
        _reduce[(programs,)](values, rows, hashes, count, first_row, bits, has_hash, num_warps=_WARPS)
    return programs
