"""Ranges of bytes in a storage: a sorted array of `[start, end)` that neither overlap nor touch. Exact for every layout
of a tensor, up to a number of rows beyond which all between the first byte and the last counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ranges = NDArray[np.int64]

MAX_ROWS = 1 << 20
NOTHING: Ranges = np.empty((0, 2), np.int64)
_LAST = np.iinfo(np.int64).max


def make_range(start: int, end: int) -> Ranges:
    return np.array([[start, end]], np.int64) if end > start else NOTHING


def ranges_of(shape: Sequence[int], stride: Sequence[int], offset: int, item_bytes: int) -> Ranges:
    """The bytes of its storage that the elements of a tensor lie in."""
    if 0 in shape:
        return NOTHING
    start, length = offset * item_bytes, item_bytes
    # From the innermost dimension outwards, for as long as what is there has no gaps.
    steps = sorted((step * item_bytes, size) for step, size in zip(stride, shape, strict=True) if step)
    rows = [(step, size) for step, size in steps if size > 1]
    while rows and rows[0][0] <= length:
        step, size = rows.pop(0)
        length += step * (size - 1)
    if not rows:
        return make_range(start, start + length)
    if math.prod(size for _, size in rows) > MAX_ROWS:
        return make_range(start, start + length + sum(step * (size - 1) for step, size in rows))
    starts: Any = np.array([start], np.int64)
    for step, size in reversed(rows):
        starts = (starts[:, None] + np.arange(size, dtype=np.int64) * step).ravel()
    return merge(np.stack([starts, starts + length], axis=1))


def merge(ranges: Ranges) -> Ranges:
    """Sorted, and in one piece what overlaps or touches."""
    if len(ranges) < 2:
        return ranges
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ranges[:, 1])
    is_first = np.concatenate([[True], ranges[1:, 0] > ends[:-1]])
    is_last = np.concatenate([is_first[1:], [True]])
    return np.stack([ranges[is_first, 0], ends[is_last]], axis=1)


def unite(first: Ranges, second: Ranges) -> Ranges:
    if not len(first) or not len(second):
        return second if not len(first) else first
    return merge(np.concatenate([first, second]))


def intersect(first: Ranges, second: Ranges) -> Ranges:
    """What is in both."""
    if len(first) == 1 and len(second) == 1:  # as it is nearly always
        (start, end), (other_start, other_end) = first.tolist()[0], second.tolist()[0]
        return make_range(max(start, other_start), min(end, other_end))
    low = np.searchsorted(second[:, 1], first[:, 0], "right")
    high = np.searchsorted(second[:, 0], first[:, 1], "left")
    counts = np.maximum(high - low, 0)
    ours = np.repeat(np.arange(len(first)), counts)
    theirs = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(low, counts)
    starts = np.maximum(first[ours, 0], second[theirs, 0])
    return np.stack([starts, np.minimum(first[ours, 1], second[theirs, 1])], axis=1)


def subtract(first: Ranges, second: Ranges) -> Ranges:
    """What is in the first and not in the second."""
    if len(first) == 1 and len(second) == 1:
        (start, end), (other_start, other_end) = first.tolist()[0], second.tolist()[0]
        if other_start <= start and end <= other_end:
            return NOTHING
    bounds = np.concatenate([[-1], second.ravel(), [_LAST]])
    gaps = bounds.reshape(-1, 2)
    return intersect(first, gaps[gaps[:, 1] > gaps[:, 0]])


def ranges_where(flags: NDArray[np.bool_], item_bytes: int) -> Ranges:
    """The bytes of the elements that have a flag, in a storage that holds nothing but elements of this size."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return edges.reshape(-1, 2).astype(np.int64) * item_bytes
