"""Ranges of bytes are sets of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.capture import byte_range
from tensorprobe.capture.byte_range import Ranges, intersect, ranges_of, ranges_where, subtract, unite

Array = np.ndarray[Any, Any]


class View:
    """Part of an array, described as a tensor is."""

    def __init__(self, base: Array, part: Array) -> None:
        self.shape = part.shape
        self._part = part
        self._offset = part.__array_interface__["data"][0] - base.__array_interface__["data"][0]

    def ranges(self) -> Ranges:
        item = self._part.itemsize
        return ranges_of(self.shape, [step // item for step in self._part.strides], self._offset // item, item)

    def bytes(self) -> set[int]:
        """Which bytes these are, by asking each element for its place."""
        steps = [np.arange(size) * step for size, step in zip(self.shape, self._part.strides, strict=True)]
        places = sum(np.ix_(*steps), np.zeros((1,) * len(steps), int)).ravel() + self._offset if steps else []
        return {int(place) + part for place in places for part in range(self._part.itemsize)}


@st.composite
def views(draw: st.DrawFn) -> View:
    """Any part of a storage of 96 bytes, in any order."""
    base = np.zeros(96, np.uint8)
    part = base.view(draw(st.sampled_from(["u1", "i2", "f4"]))).reshape(
        draw(st.sampled_from([(-1,), (4, -1), (2, 3, -1)]))
    )
    for _ in range(draw(st.integers(0, 3))):
        dim = draw(st.integers(0, part.ndim - 1))
        start = draw(st.integers(0, part.shape[dim]))
        end = draw(st.integers(start, part.shape[dim]))
        part = np.moveaxis(part, dim, 0)[start : end : draw(st.integers(1, 3))]
        if draw(st.booleans()):
            part = np.broadcast_to(part, (2, *part.shape))
    return View(base, part)


def bytes_in(ranges: Ranges) -> set[int]:
    starts, ends = ranges[:, 0], ranges[:, 1]
    assert (starts < ends).all() and (ends[:-1] < starts[1:]).all()  # sorted, and in as few pieces as possible
    return {int(place) for start, end in ranges for place in range(start, end)}


@given(views(), views())
def test_ranges_are_the_bytes_of_their_tensors(first: View, second: View) -> None:
    one, two = first.ranges(), second.ranges()
    assert bytes_in(one) == first.bytes()
    assert bytes_in(unite(one, two)) == first.bytes() | second.bytes()
    assert bytes_in(intersect(one, two)) == first.bytes() & second.bytes()
    assert bytes_in(subtract(one, two)) == first.bytes() - second.bytes()


@given(st.lists(st.booleans(), max_size=20))
def test_flags_of_elements_become_ranges(flags: list[bool]) -> None:
    expected = {place * 4 + part for place, flag in enumerate(flags) if flag for part in range(4)}
    assert bytes_in(ranges_where(np.array(flags, bool), 4)) == expected


def test_beyond_a_number_of_rows_all_between_them_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    base = np.zeros((100, 10), np.float32)
    column = View(base, base[:, 3])
    assert len(column.ranges()) == 100
    monkeypatch.setattr(byte_range, "MAX_ROWS", 99)
    assert column.ranges().tolist() == [[12, 99 * 40 + 16]]
