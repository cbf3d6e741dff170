"""What a header claims of a tensor is checked before anything is read: no element lies outside, none stands for
thousands."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from tensorprobe.store import tensor_layout
from tensorprobe.store.tensor_layout import TensorLayout, Unreadable, make_array

MOST_FLOATS = 1 << 28  # of 4 bytes: 1 GiB


def repeat(count: int, size_bytes: int = 8) -> TensorLayout:
    """One float32, as often as it is said."""
    return TensorLayout("float32", (count,), (0,), 0, size_bytes)


def test_a_few_bytes_may_stand_for_a_gibibyte_and_for_no_element_more() -> None:
    assert make_array(bytes(8), repeat(MOST_FLOATS)).shape == (MOST_FLOATS,)
    with pytest.raises(Unreadable, match=rf"^repeats 8 bytes as {MOST_FLOATS + 1} elements: too many to compare$"):
        make_array(bytes(8), repeat(MOST_FLOATS + 1))


def test_the_limit_of_repetition_counts_bytes_over_all_dimensions() -> None:
    doubles = TensorLayout("float64", (1 << 14, 1 << 13), (0, 0), 0, 8)
    assert make_array(bytes(8), doubles).nbytes == 1 << 30
    with pytest.raises(Unreadable, match=f"repeats 8 bytes as {1 << 28} elements"):
        make_array(bytes(8), dataclasses.replace(doubles, shape=(1 << 14, 1 << 14)))


def test_a_tensor_that_repeats_nothing_may_be_larger_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_layout, "MAX_REPEATED_BYTES", 16)
    content = np.arange(6, dtype="<f4").tobytes()
    assert make_array(content, TensorLayout("float32", (6,), (1,), 0, 24)).tolist() == [0, 1, 2, 3, 4, 5]
    assert make_array(content, repeat(6, 24)).tolist() == [0] * 6
    with pytest.raises(Unreadable, match=re.escape("repeats 24 bytes as 7 elements")):
        make_array(content, repeat(7, 24))
