"""The share of one program of a tensor of integers or truths, with exact extremes."""

from __future__ import annotations

import triton
import triton.language as tl

from tensorprobe.capture.torch.kernel_part import LANES, WIDTH, hash_of, offset_of, row_sign, store_counts


@triton.jit  # type: ignore[untyped-decorator]
def reduce_integers(  # type: ignore[no-untyped-def]
    values,
    form,
    count,
    program,
    programs,
    row,
    hashes,
    BITS: tl.constexpr,  # noqa: N803
    IS_SHIFTED: tl.constexpr,  # noqa: N803
    IS_TRUTH: tl.constexpr,  # noqa: N803
    DIMENSIONS: tl.constexpr,  # noqa: N803
    HAS_HASH: tl.constexpr,  # noqa: N803
):
    """The share of one program of integers or truths. `IS_SHIFTED`: they may not fit int64, and their extremes are put
    down less 2**63."""
    lane = tl.arange(0, LANES)
    largest = tl.full((LANES,), -0x8000000000000000, tl.int64)
    smallest = tl.full((LANES,), 0x7FFFFFFFFFFFFFFF, tl.int64)
    total, squares = tl.zeros((LANES,), tl.float64), tl.zeros((LANES,), tl.float64)
    folded, hashed = tl.zeros((LANES,), tl.float64), tl.zeros((LANES,), tl.uint64)
    for line in range(program, count // WIDTH + 1, programs):
        index = lane + line * WIDTH
        inside = (lane < WIDTH) & (index < count)
        value = tl.load(values + offset_of(index, form, DIMENSIONS), mask=inside, other=0)
        whole = value.to(tl.int64)
        number = value.to(tl.float64)
        if IS_TRUTH:
            whole = (value != 0).to(tl.int64)
            number = whole.to(tl.float64)
        if IS_SHIFTED:
            whole = whole ^ -0x8000000000000000
        largest = tl.maximum(largest, tl.where(inside, whole, -0x8000000000000000))
        smallest = tl.minimum(smallest, tl.where(inside, whole, 0x7FFFFFFFFFFFFFFF))
        total += number
        squares += number * number
        folded += number * row_sign(line).to(tl.float64)
        if HAS_HASH:
            hashed += hash_of(value, index, BITS)
    none = tl.zeros((LANES,), tl.int32)
    store_counts(row, folded, lane.to(tl.uint32), none, none)
    most, least = tl.max(largest, 0), tl.min(smallest, 0)
    if IS_TRUTH:
        tl.store(row, most.to(tl.float64))
        tl.store(row + 1, least.to(tl.float64))
    else:
        tl.store(row, most.to(tl.float64, bitcast=True))
        tl.store(row + 1, least.to(tl.float64, bitcast=True))
    tl.store(row + 2, tl.sum(total, 0))
    tl.store(row + 3, tl.sum(squares, 0))
    if HAS_HASH:
        tl.store(hashes, tl.sum(hashed, 0).to(tl.int64, bitcast=True))
