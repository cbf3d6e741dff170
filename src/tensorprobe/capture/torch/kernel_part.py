"""What the kernels for floats and for integers share: where an element is, its share of the hash, the sketch."""

from __future__ import annotations

import triton
import triton.language as tl

from tensorprobe.store import sketch

_A = tl.constexpr(0x9E3779B97F4A7C15)
_B = tl.constexpr(0xD6E8FEB86659FD93)
WIDTH = tl.constexpr(sketch.BLOCK)
LANES = tl.constexpr(1 << (sketch.BLOCK - 1).bit_length())
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


@triton.jit
def row_sign(line):  # type: ignore[no-untyped-def]
    return 1.0 - 2.0 * (_mix(tl.cast(line, tl.uint32)) & 1).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _signed(columns, bits, index: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.where(((bits >> index) & 1) != 0, -columns, columns)


@triton.jit
def store_counts(row, folded, column, nans, infs):  # type: ignore[no-untyped-def]
    """How many were NaN or infinite, and the four numbers of the sketch, of the sums over all rows of each column."""
    bits = ((column * 0 + _HADAMARD) >> (4 * (column & 3))) ^ _mix(column >> 2)
    one, two, three, four = (
        _signed(folded, bits, 0),
        _signed(folded, bits, 1),
        _signed(folded, bits, 2),
        _signed(folded, bits, 3),
    )
    one, two, three, four, nans, infs = tl.reduce((one, two, three, four, nans, infs), 0, _add_six)
    tl.store(row + 4, nans.to(tl.float64))
    tl.store(row + 5, infs.to(tl.float64))
    tl.store(row + 6, one)
    tl.store(row + 7, two)
    tl.store(row + 8, three)
    tl.store(row + 9, four)


@triton.jit
def _add_six(a, b, c, d, e, f, other_a, other_b, other_c, other_d, other_e, other_f):  # type: ignore[no-untyped-def]
    return a + other_a, b + other_b, c + other_c, d + other_d, e + other_e, f + other_f


@triton.jit  # type: ignore[untyped-decorator]
def hash_of(value, index, BITS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """The share of each element: its bits, by its position."""
    if BITS == 8:
        word = value.to(tl.uint8, bitcast=True).to(tl.uint64)
    elif BITS == 16:
        word = value.to(tl.uint16, bitcast=True).to(tl.uint64)
    elif BITS == 32:
        word = value.to(tl.uint32, bitcast=True).to(tl.uint64)
    else:
        word = value.to(tl.uint64, bitcast=True)
    mixed = word * _A
    mixed = mixed ^ (mixed >> 32)
    weight = (2 * index + 1).to(tl.uint64) * _B
    weight = (weight ^ (weight >> 32)) | 1
    return mixed * weight


@triton.jit  # type: ignore[untyped-decorator]
def offset_of(index, form, DIMENSIONS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Where an element is, in elements from the first one on."""
    size_1, size_2, size_3, step_0, step_1, step_2 = form
    offset = index
    if DIMENSIONS > 1:
        left = index.to(tl.uint32) // size_3.to(tl.uint32)
        offset = (index.to(tl.uint32) - left * size_3.to(tl.uint32)).to(tl.int64)
        if DIMENSIONS > 2:
            above = left // size_2.to(tl.uint32)
            offset += (left - above * size_2.to(tl.uint32)).to(tl.int64) * step_2
            if DIMENSIONS > 3:
                top = above // size_1.to(tl.uint32)
                offset += (above - top * size_1.to(tl.uint32)).to(tl.int64) * step_1 + top.to(tl.int64) * step_0
            else:
                offset += above.to(tl.int64) * step_1
        else:
            offset += left.to(tl.int64) * step_2
    return offset
