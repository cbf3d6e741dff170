"""Tensors in words, as MindSpore prints them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tensorprobe.store.printed_text import parse_tensor
from tensorprobe.store.tensor_layout import Unreadable
from tests.length import count_examples


@pytest.mark.parametrize(
    ("text", "dtype", "numbers"),
    [
        ("Tensor(shape=[4], dtype=Float32, value=\n[2 3 4 5])", "float32", [2, 3, 4, 5]),
        ("Tensor(shape=[1, 2], dtype=Float32, value=\n[[ 1.00000000e+00, -2.00000000e+00]])", "float32", [[1, -2]]),
        ("Tensor(shape=[2 1], dtype=Int64, value=[[9223372036854775807]\n [-1]])", "int64", [[2**63 - 1], [-1]]),
        ("Tensor(shape=[], dtype=Float16, value=1.5)", "float16", 1.5),
        ("Tensor(shape=[2], dtype=Bool, value=[ True False])", "bool", [True, False]),
        ("Tensor(shape=[2], dtype=BFloat16, value=[1.5 -2])", "float32", [1.5, -2]),
        ("Tensor(shape=[2], dtype=Complex64, value=[1+2j 0-1j])", "complex64", [1 + 2j, -1j]),
        ("Tensor(shape=[0], dtype=Int8, value=[])", "int8", []),
    ],
)
def test_a_text_is_the_array_that_it_shows(text: str, dtype: str, numbers: object) -> None:
    array = parse_tensor(text)
    assert array.dtype == dtype and array.tolist() == numbers


@settings(max_examples=count_examples(100))
@given(array=hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=4), elements=st.floats(width=32)))
def test_any_array_is_read_as_it_was_printed(array: np.ndarray) -> None:  # type: ignore[type-arg]
    with np.printoptions(threshold=10**6, floatmode="unique"):
        text = f"Tensor(shape={list(array.shape)}, dtype=Float32, value=\n{array})"
    assert np.array_equal(parse_tensor(text), array, equal_nan=True)


@settings(max_examples=count_examples(200))
@given(shape=st.text("0123456789, -x", max_size=8), values=st.text("0123456789. []-einfTrue", max_size=20))
def test_any_text_is_read_or_refused(shape: str, values: str) -> None:
    try:
        parse_tensor(f"Tensor(shape=[{shape}], dtype=Int16, value={values})")
    except Unreadable:
        return


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Tensor(shape=[4], dtype=Float32, value=[2 3", "is cut off"),
        ("Tensor(shape=[4], dtype=Float32, value=[2 3])", r"2 values and the shape \[4\]"),
        ("Tensor(shape=[4], dtype=Float32, value=[2 ... 3])", "only a part of its values"),
        ("Tensor(shape=[1], dtype=Float32, value=[x])", "no Float32"),
        ("Tensor(shape=[1], dtype=Int8, value=[300])", "no Int8"),
        ("Tensor(shape=[1], dtype=Bool, value=[2])", "no Bool"),
        ("Tensor(shape=[1], dtype=String, value=[x])", "of the type 'String'"),
        ("Tensor(shape=[x], dtype=Int8, value=[3])", r"the shape \[x\]"),
    ],
)
def test_what_is_no_tensor_is_refused_with_its_reason(text: str, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        parse_tensor(text)


def test_what_is_no_number_is_not_repeated_at_length() -> None:
    for dtype in ("Float32", "Int8", "Bool", "Complex64"):
        with pytest.raises(Unreadable) as caught:
            parse_tensor(f"Tensor(shape=[1], dtype={dtype}, value=[{'x' * 1_000_000}])")
        assert len(str(caught.value)) < 300
    with pytest.raises(Unreadable, match="no Int64"):
        parse_tensor(f"Tensor(shape=[1], dtype=Int64, value=[{'9' * 5_000}])")
    with pytest.raises(Unreadable) as caught:
        parse_tensor(f"Tensor(shape=[1], dtype={'x' * 1_000_000}, value=[1])")
    assert len(str(caught.value)) < 300
