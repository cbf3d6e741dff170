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

from tensorprobe.store import sketch

COLUMNS = 6 + sketch.COUNT
"""max, min, sum, sum of squares, NaN count, Inf count, and the four numbers of the sketch"""
FIELDS = 3
"""What a table says of each tensor for `merge_listed`: its first row, how many rows it has, and whether it is of
integers, whose extremes are put down as such: float64 ends at 2**53."""
_A = tl.constexpr(0x9E3779B97F4A7C15)
_B = tl.constexpr(0xD6E8FEB86659FD93)
_WIDTH = tl.constexpr(sketch.BLOCK)
_LANES = tl.constexpr(1 << (sketch.BLOCK - 1).bit_length())
_COLUMNS = tl.constexpr(COLUMNS)
_FIELDS = tl.constexpr(FIELDS)
_AT_ONCE = tl.constexpr(4)
"""How many rows of the sketch a program reads at once: so many bytes must be on their way for all of the bandwidth."""
_LARGEST_SQUARES = tl.constexpr(3e38)
_SMALLEST_SQUARES = tl.constexpr(1e-27)  # of a row: squares of float32 below 1e-37 lose digits
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
def _row_sign(line):  # type: ignore[no-untyped-def]
    return 1.0 - 2.0 * (_mix(tl.cast(line, tl.uint32)) & 1).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _signed(columns, bits, index: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.where(((bits >> index) & 1) != 0, -columns, columns)


@triton.jit
def _store_counts(row, folded, column, nans, infs):  # type: ignore[no-untyped-def]
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
def _hash(value, index, BITS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
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
def _offset(index, form, DIMENSIONS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
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
    value = tl.load(values + _offset(index, form, DIMENSIONS), mask=inside, other=0.0)
    number = value.to(tl.float32)
    is_number = inside & (number == number)
    is_finite = tl.abs(number) < float("inf")
    largest = tl.maximum(largest, tl.where(is_number, number, float("-inf")))
    smallest = tl.minimum(smallest, tl.where(is_number, number, float("inf")))
    exact = tl.where(is_finite, number, 0.0).to(tl.float64)
    total += exact
    squares += exact * exact
    folded += exact * _row_sign(line).to(tl.float64)
    nans += (number != number).to(tl.int32)
    infs += (tl.abs(number) == float("inf")).to(tl.int32)
    if HAS_HASH:
        hashed += _hash(value, index, BITS)  # that of a zero is 0
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
    row = tl.arange(0, _LANES // side)
    beside = tl.arange(0, side)
    largest, smallest, total, squares, folded, hashed = sums
    most = tl.full((_LANES // side, side), float("-inf"), tl.float32)
    least = tl.full((_LANES // side, side), float("inf"), tl.float32)
    sums_here = tl.zeros((_LANES // side, side), tl.float32)
    squares_here, folded_here = sums_here, sums_here
    for number in tl.static_range(COUNT):
        here = tl.cast(line + number * step, tl.int64)
        begin = row * side + here * _WIDTH
        offset = _offset(begin, form, DIMENSIONS)
        offsets = offset[:, None] + beside[None, :]
        if IS_ALIGNED:
            offsets = tl.max_contiguous(tl.multiple_of(offsets, (1, side)), (1, side))
        place = values + offsets
        if IS_LAST:  # noqa: SIM108  triton chooses between blocks, not between values
            value = tl.load(place, mask=(row < _WIDTH // side)[:, None], other=0.0)
        else:
            value = tl.load(place)
        exact = value.to(tl.float32)
        most, least = tl.maximum(most, exact), tl.minimum(least, exact)
        sums_here += exact
        squares_here += exact * exact
        folded_here += exact * _row_sign(here)
        if HAS_HASH:
            hashed += tl.sum(_hash(value, begin[:, None] + beside[None, :], BITS), 1)
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
        tl.full((_LANES // side,), float("-inf"), tl.float32),
        tl.full((_LANES // side,), float("inf"), tl.float32),
        tl.zeros((_LANES // side,), tl.float64),
        tl.zeros((_LANES // side,), tl.float64),
        tl.zeros((_LANES // side, side), tl.float64),
        tl.zeros((_LANES // side,), tl.uint64),
    )
    own = (lines - 1 - program + programs - 1) // programs  # how many of its rows are not the very last one
    rest = program + own // _AT_ONCE * _AT_ONCE * programs
    for line in range(program, rest, programs * _AT_ONCE):
        sums = _add_lines(sums, values, form, line, programs, BITS, _AT_ONCE, False, IS_ALIGNED, DIMENSIONS, HAS_HASH)
    for line in range(rest, lines, programs):
        sums = _add_lines(sums, values, form, line, programs, BITS, 1, True, IS_ALIGNED, DIMENSIONS, HAS_HASH)
    largest, smallest, total, squares, folded, hashed = sums
    is_there = tl.arange(0, _LANES // side) < _WIDTH // side
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
    return is_right, most, least, whole, size, tl.reshape(folded, (_LANES,)), word


@triton.jit  # type: ignore[untyped-decorator]
def _reduce(  # type: ignore[no-untyped-def]
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
    lane = tl.arange(0, _LANES)
    lines = count // _WIDTH
    first = program
    most, least = tl.full((), float("-inf"), tl.float32), tl.full((), float("inf"), tl.float32)
    whole, size, word = tl.zeros((), tl.float64), tl.zeros((), tl.float64), tl.zeros((), tl.uint64)
    columns = tl.zeros((_LANES,), tl.float64)
    if lines >= _AT_ONCE * programs:
        is_right, most_found, least_found, whole_found, size_found, columns_found, word_found = _reduce_fast(
            values, form, lines, program, programs, BITS, IS_ALIGNED, DIMENSIONS, HAS_HASH
        )
        if is_right:
            first = lines
            most, least, whole, size = most_found, least_found, whole_found, size_found
            columns, word = columns_found, word_found
    sums = (
        tl.full((_LANES,), float("-inf"), tl.float32),
        tl.full((_LANES,), float("inf"), tl.float32),
        tl.zeros((_LANES,), tl.float64),
        tl.zeros((_LANES,), tl.float64),
        columns,
        tl.zeros((_LANES,), tl.int32),
        tl.zeros((_LANES,), tl.int32),
        tl.zeros((_LANES,), tl.uint64),
    )
    for line in range(first, lines, programs):
        index = lane + line * _WIDTH
        sums = _add_line(sums, values, form, line, index, lane < _WIDTH, BITS, DIMENSIONS, HAS_HASH)
    if lines % programs == program:
        index = lane + lines * _WIDTH
        inside = (lane < _WIDTH) & (index < count)
        sums = _add_line(sums, values, form, lines, index, inside, BITS, DIMENSIONS, HAS_HASH)
    largest, smallest, total, squares, folded, nans, infs, hashed = sums
    largest, smallest, total, squares = tl.reduce((largest, smallest, total, squares), 0, _join)
    _store_counts(row, folded, lane.to(tl.uint32), nans, infs)
    tl.store(row, tl.maximum(most, largest).to(tl.float64))
    tl.store(row + 1, tl.minimum(least, smallest).to(tl.float64))
    tl.store(row + 2, whole + total)
    tl.store(row + 3, size + squares)
    if HAS_HASH:
        tl.store(hashes, (word + tl.sum(hashed, 0)).to(tl.int64, bitcast=True))


@triton.jit  # type: ignore[untyped-decorator]
def _reduce_integers(  # type: ignore[no-untyped-def]
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
    lane = tl.arange(0, _LANES)
    largest = tl.full((_LANES,), -0x8000000000000000, tl.int64)
    smallest = tl.full((_LANES,), 0x7FFFFFFFFFFFFFFF, tl.int64)
    total, squares = tl.zeros((_LANES,), tl.float64), tl.zeros((_LANES,), tl.float64)
    folded, hashed = tl.zeros((_LANES,), tl.float64), tl.zeros((_LANES,), tl.uint64)
    for line in range(program, count // _WIDTH + 1, programs):
        index = lane + line * _WIDTH
        inside = (lane < _WIDTH) & (index < count)
        value = tl.load(values + _offset(index, form, DIMENSIONS), mask=inside, other=0)
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
        folded += number * _row_sign(line).to(tl.float64)
        if HAS_HASH:
            hashed += _hash(value, index, BITS)
    none = tl.zeros((_LANES,), tl.int32)
    _store_counts(row, folded, lane.to(tl.uint32), none, none)
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
            _reduce(values, form, count, program, programs, place, hash_place, bits, IS_ALIGNED, DIMENSIONS, HAS_HASH)
        else:
            is_shifted: tl.constexpr = tl.uint64 == DTYPE
            _reduce_integers(
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
