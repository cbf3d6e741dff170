"""What a header claims of a tensor is checked before anything is read: no element lies outside, none stands for
thousands."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from tensorprobe.store import tensor_layout
from tensorprobe.store.tensor_layout import TensorLayout, Unreadable, contiguous_strides, make_array

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


CONTENT = np.arange(1, 9, dtype="<f4").tobytes()


@pytest.mark.parametrize("begin", [0, 8])
def test_elements_are_taken_where_offset_and_strides_say(begin: int) -> None:
    layout = TensorLayout("float32", (2, 2), (1, 2), begin, 24, offset=1)
    first = begin / 4 + 2
    assert make_array(CONTENT, layout).tolist() == [[first, first + 2], [first + 1, first + 3]]


def test_the_last_element_may_end_with_the_storage_and_no_later() -> None:
    fitting = TensorLayout("float32", (3, 2), (2, 1), 8, 24)
    assert make_array(CONTENT, fitting).tolist() == [[3, 4], [5, 6], [7, 8]]
    for change in ({"offset": 1}, {"size_bytes": 23}, {"shape": (3, 3)}, {"strides": (3, 1)}):
        with pytest.raises(Unreadable, match="is too short for its shape"):
            make_array(CONTENT, dataclasses.replace(fitting, **change))  # type: ignore[arg-type]
    with pytest.raises(Unreadable, match="is cut off"):
        make_array(CONTENT, dataclasses.replace(fitting, begin=9))


def test_an_empty_tensor_is_read_wherever_it_lies() -> None:
    for begin, offset in ((0, 0), (32, 0), (32, 1 << 40)):
        found = make_array(CONTENT, TensorLayout("float32", (3, 0), (0, 1), begin, 0, offset))
        assert (found.shape, found.dtype) == ((3, 0), np.float32)


def test_bits_of_torch_that_say_conjugated_or_negated_are_applied() -> None:
    real = TensorLayout("float32", (2,), (1,), 0, 8)
    assert make_array(CONTENT, dataclasses.replace(real, is_negated=True)).tolist() == [-1, -2]
    assert make_array(CONTENT, dataclasses.replace(real, is_conjugated=True)).tolist() == [1, 2]
    complex_pair = TensorLayout("complex64", (1,), (1,), 0, 8, is_conjugated=True)
    assert make_array(CONTENT, complex_pair).tolist() == [1 - 2j]
    assert make_array(CONTENT, dataclasses.replace(complex_pair, is_negated=True)).tolist() == [-1 + 2j]


@pytest.mark.parametrize("is_big_endian", [False, True])
def test_complex_numbers_of_two_halves_are_joined(is_big_endian: bool) -> None:
    content = np.arange(1, 9, dtype=">f2" if is_big_endian else "<f2").tobytes()
    layout = TensorLayout("complex32", (2,), (2,), 0, 16, offset=1, is_big_endian=is_big_endian)
    assert make_array(content, layout).tolist() == [3 + 4j, 7 + 8j]
    turned = dataclasses.replace(layout, is_conjugated=True, is_negated=True)
    assert make_array(content, turned).tolist() == [-3 + 4j, -7 + 8j]


def test_strides_without_gaps_count_from_the_last_dimension_or_as_fortran_from_the_first() -> None:
    assert contiguous_strides((2, 3, 4)) == (12, 4, 1)
    assert contiguous_strides((2, 3, 4), is_fortran=True) == (1, 2, 6)
    assert contiguous_strides(()) == () and contiguous_strides((5,)) == (1,)
