"""The share of one program of a tensor of floats: whole rows of the sketch fast, the rest with care."""

from __future__ import annotations

import triton
import triton.language as tl

from tensorprobe.capture.torch.kernel_part import LANES, WIDTH, hash_of, offset_of, row_sign, store_counts

_AT_ONCE = tl.constexpr(4)
"""How many rows of the sketch a program reads at once: so many bytes must be on their way for all of the bandwidth."""
_LARGEST_SQUARES = tl.constexpr(3e38)
_SMALLEST_SQUARES = tl.constexpr(1e-27)  # of a row: squares of float32 below 1e-37 lose digits


@triton.jit  # type: ignore[untyped-decorator]
def _add_line(  # type: ignore[no-untyped-def]
    sums,
    values,
    form,
    line,
    index,
    inside,
    BITS: tl.constexpr,  # noqa: N803
    DIMENSIONS: tl.constexpr,  # noqa: N803
    HAS_HASH: tl.constexpr,  # noqa: N803
):
    """One more row of the sketch, lane by lane; infinities are counted and left out of the sums."""
    largest, smallest, total, squares, folded, nans, infs, hashed = sums
    value = tl.load(values + offset_of(index, form, DIMENSIONS), mask=inside, other=0.0)
    number = value.to(tl.float32)
    is_number = inside & (number == number)
    is_finite = tl.abs(number) < float("inf")
    largest = tl.maximum(largest, tl.where(is_number, number, float("-inf")))
    smallest = tl.minimum(smallest, tl.where(is_number, number, float("inf")))
    exact = tl.where(is_finite, number, 0.0).to(tl.float64)
    total += exact
    squares += exact * exact
    folded += exact * row_sign(line).to(tl.float64)
    nans += (number != number).to(tl.int32)
    infs += (tl.abs(number) == float("inf")).to(tl.int32)
    if HAS_HASH:
        hashed += hash_of(value, index, BITS)  # that of a zero is 0
    return largest, smallest, total, squares, folded, nans, infs, hashed


@triton.jit  # type: ignore[untyped-decorator]
def _add_lines(  # type: ignore[no-untyped-def]
    sums,
    values,
    form,
    line,
    step,
    BITS: tl.constexpr,  # noqa: N803
    COUNT: tl.constexpr,  # noqa: N803
    IS_LAST: tl.constexpr,  # noqa: N803
    IS_ALIGNED: tl.constexpr,  # noqa: N803
    DIMENSIONS: tl.constexpr,  # noqa: N803
    HAS_HASH: tl.constexpr,  # noqa: N803
):
    """`COUNT` more whole rows of the sketch, `step` apart, added up in float32 before they are in float64. A thread
    reads elements that lie side by side; the last ones read some of the row that follows, unless `IS_LAST` says that
    there may be none: nobody asks for their sums."""
    side: tl.constexpr = 128 // BITS  # the elements of one read
    row = tl.arange(0, LANES // side)
    beside = tl.arange(0, side)
    largest, smallest, total, squares, folded, hashed = sums
    most = tl.full((LANES // side, side), float("-inf"), tl.float32)
    least = tl.full((LANES // side, side), float("inf"), tl.float32)
    sums_here = tl.zeros((LANES // side, side), tl.float32)
    squares_here, folded_here = sums_here, sums_here
    for number in tl.static_range(COUNT):
        here = tl.cast(line + number * step, tl.int64)
        begin = row * side + here * WIDTH
        offset = offset_of(begin, form, DIMENSIONS)
        offsets = offset[:, None] + beside[None, :]
        if IS_ALIGNED:
            offsets = tl.max_contiguous(tl.multiple_of(offsets, (1, side)), (1, side))
        place = values + offsets
        if IS_LAST:  # noqa: SIM108  triton chooses between blocks, not between values
            value = tl.load(place, mask=(row < WIDTH // side)[:, None], other=0.0)
        else:
            value = tl.load(place)
        exact = value.to(tl.float32)
        most, least = tl.maximum(most, exact), tl.minimum(least, exact)
        sums_here += exact
        squares_here += exact * exact
        folded_here += exact * row_sign(here)
        if HAS_HASH:
            hashed += tl.sum(hash_of(value, begin[:, None] + beside[None, :], BITS), 1)
    largest = tl.maximum(largest, tl.max(most, 1))
    smallest = tl.minimum(smallest, tl.min(least, 1))
    total += tl.sum(sums_here, 1).to(tl.float64)
    squares += tl.sum(squares_here, 1).to(tl.float64)
    folded += folded_here.to(tl.float64)
    return largest, smallest, total, squares, folded, hashed


@triton.jit
def _join(largest, smallest, total, squares, other_largest, other_smallest, other_total, other_squares):  # type: ignore[no-untyped-def]
    is_larger, is_smaller = other_largest > largest, other_smallest < smallest
    largest, smallest = tl.where(is_larger, other_largest, largest), tl.where(is_smaller, other_smallest, smallest)
    return largest, smallest, total + other_total, squares + other_squares


@triton.jit  # type: ignore[untyped-decorator]
def _reduce_fast(  # type: ignore[no-untyped-def]
    values,
    form,
    lines,
    program,
    programs,
    BITS: tl.constexpr,  # noqa: N803
    IS_ALIGNED: tl.constexpr,  # noqa: N803
    DIMENSIONS: tl.constexpr,  # noqa: N803
    HAS_HASH: tl.constexpr,  # noqa: N803
):
    """The whole rows of the sketch of one program's share, where all is finite and squares stay inside float32; and
    whether that was so."""
    side: tl.constexpr = 128 // BITS
    sums = (
        tl.full((LANES // side,), float("-inf"), tl.float32),
        tl.full((LANES // side,), float("inf"), tl.float32),
        tl.zeros((LANES // side,), tl.float64),
        tl.zeros((LANES // side,), tl.float64),
        tl.zeros((LANES // side, side), tl.float64),
        tl.zeros((LANES // side,), tl.uint64),
    )
    own = (lines - 1 - program + programs - 1) // programs  # how many of its rows are not the very last one
    rest = program + own // _AT_ONCE * _AT_ONCE * programs
    for line in range(program, rest, programs * _AT_ONCE):
        sums = _add_lines(sums, values, form, line, programs, BITS, _AT_ONCE, False, IS_ALIGNED, DIMENSIONS, HAS_HASH)
    for line in range(rest, lines, programs):
        sums = _add_lines(sums, values, form, line, programs, BITS, 1, True, IS_ALIGNED, DIMENSIONS, HAS_HASH)
    largest, smallest, total, squares, folded, hashed = sums
    is_there = tl.arange(0, LANES // side) < WIDTH // side
    largest, smallest = tl.where(is_there, largest, float("-inf")), tl.where(is_there, smallest, float("inf"))
    total, squares, hashed = (
        tl.where(is_there, total, 0.0),
        tl.where(is_there, squares, 0.0),
        tl.where(is_there, hashed, 0),
    )
    folded = tl.where(is_there[:, None], folded, 0.0)
    most, least, whole, size = tl.reduce((largest, smallest, total, squares), 0, _join)
    word = tl.zeros((), tl.uint64)
    if HAS_HASH:
        word = tl.sum(hashed, 0)
    is_zero = (most == 0.0) & (least == 0.0)
    is_right = (size < _LARGEST_SQUARES) & ((size > _SMALLEST_SQUARES * lines) | is_zero)  # NaN is neither
    return is_right, most, least, whole, size, tl.reshape(folded, (LANES,)), word


@triton.jit  # type: ignore[untyped-decorator]
def reduce_floats(  # type: ignore[no-untyped-def]
    values,
    form,
    count,
    program,
    programs,
    row,
    hashes,
    BITS: tl.constexpr,  # noqa: N803
    IS_ALIGNED: tl.constexpr,  # noqa: N803
    DIMENSIONS: tl.constexpr,  # noqa: N803
    HAS_HASH: tl.constexpr,  # noqa: N803
):
    """The share of one program. Of a large tensor its whole rows are added up fast; what is left, or was not right so,
    element by element in float64. Only the last row of the sketch may be short."""
    lane = tl.arange(0, LANES)
    lines = count // WIDTH
    first = program
    most, least = tl.full((), float("-inf"), tl.float32), tl.full((), float("inf"), tl.float32)
    whole, size, word = tl.zeros((), tl.float64), tl.zeros((), tl.float64), tl.zeros((), tl.uint64)
    columns = tl.zeros((LANES,), tl.float64)
    if lines >= _AT_ONCE * programs:
        is_right, most_found, least_found, whole_found, size_found, columns_found, word_found = _reduce_fast(
            values, form, lines, program, programs, BITS, IS_ALIGNED, DIMENSIONS, HAS_HASH
        )
        if is_right:
            first = lines
            most, least, whole, size = most_found, least_found, whole_found, size_found
            columns, word = columns_found, word_found
    sums = (
        tl.full((LANES,), float("-inf"), tl.float32),
        tl.full((LANES,), float("inf"), tl.float32),
        tl.zeros((LANES,), tl.float64),
        tl.zeros((LANES,), tl.float64),
        columns,
        tl.zeros((LANES,), tl.int32),
        tl.zeros((LANES,), tl.int32),
        tl.zeros((LANES,), tl.uint64),
    )
    for line in range(first, lines, programs):
        index = lane + line * WIDTH
        sums = _add_line(sums, values, form, line, index, lane < WIDTH, BITS, DIMENSIONS, HAS_HASH)
    if lines % programs == program:
        index = lane + lines * WIDTH
        inside = (lane < WIDTH) & (index < count)
        sums = _add_line(sums, values, form, lines, index, inside, BITS, DIMENSIONS, HAS_HASH)
    largest, smallest, total, squares, folded, nans, infs, hashed = sums
    largest, smallest, total, squares = tl.reduce((largest, smallest, total, squares), 0, _join)
    store_counts(row, folded, lane.to(tl.uint32), nans, infs)
    tl.store(row, tl.maximum(most, largest).to(tl.float64))
    tl.store(row + 1, tl.minimum(least, smallest).to(tl.float64))
    tl.store(row + 2, whole + total)
    tl.store(row + 3, size + squares)
    if HAS_HASH:
        tl.store(hashes, (word + tl.sum(hashed, 0)).to(tl.int64, bitcast=True))
