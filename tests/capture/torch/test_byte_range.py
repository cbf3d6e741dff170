"""Ranges of bytes are sets of bytes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.capture.torch import byte_range
from tensorprobe.capture.torch.byte_range import Ranges, intersect, ranges_of, ranges_where, subtract, unite


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """Any part of a storage of 96 bytes, in any order."""
    view = torch.zeros(96, dtype=torch.uint8).view(draw(st.sampled_from([torch.uint8, torch.int16, torch.float32])))
    view = view.view(draw(st.sampled_from([(-1,), (4, -1), (2, 3, -1)])))
    for _ in range(draw(st.integers(0, 3))):
        dim = draw(st.integers(0, view.dim() - 1))
        start = draw(st.integers(0, view.shape[dim]))
        end = draw(st.integers(start, view.shape[dim]))
        view = view.movedim(dim, 0)[start : end : draw(st.integers(1, 3))]
        if draw(st.booleans()):
            view = view.unsqueeze(0).expand(2, *view.shape)
    return view


def bytes_of(tensor: torch.Tensor) -> set[int]:
    item, found = tensor.element_size(), set()
    for index in itertools.product(*map(range, tensor.shape)):
        place = tensor.storage_offset() + sum(i * step for i, step in zip(index, tensor.stride(), strict=True))
        found |= set(range(place * item, place * item + item))
    return found


def bytes_in(ranges: Ranges) -> set[int]:
    starts, ends = ranges[:, 0], ranges[:, 1]
    assert (starts < ends).all() and (ends[:-1] < starts[1:]).all()  # sorted, and in as few pieces as possible
    return {place for start, end in ranges for place in range(start, end)}


@given(views(), views())
def test_ranges_are_the_bytes_of_their_tensors(first: torch.Tensor, second: torch.Tensor) -> None:
    one, two = ranges_of(first), ranges_of(second)
    assert bytes_in(one) == bytes_of(first)
    assert bytes_in(unite(one, two)) == bytes_of(first) | bytes_of(second)
    assert bytes_in(intersect(one, two)) == bytes_of(first) & bytes_of(second)
    assert bytes_in(subtract(one, two)) == bytes_of(first) - bytes_of(second)


@given(st.lists(st.booleans(), max_size=20))
def test_flags_of_elements_become_ranges(flags: list[bool]) -> None:
    expected = {place * 4 + part for place, flag in enumerate(flags) if flag for part in range(4)}
    assert bytes_in(ranges_where(np.array(flags, bool), 4)) == expected


def test_beyond_a_number_of_rows_all_between_them_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    column: Any = torch.zeros(100, 10)[:, 3]
    assert len(ranges_of(column)) == 100
    monkeypatch.setattr(byte_range, "MAX_ROWS", 99)
    assert ranges_of(column).tolist() == [[12, 99 * 40 + 16]]
