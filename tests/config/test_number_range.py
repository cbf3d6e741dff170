from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.config import load_config
from tensorprobe.config.number_range import MAX_RANGE_LENGTH
from tensorprobe.errors import ConfigError

numbers = st.integers(0, 10**9)
spans = st.tuples(numbers, st.integers(0, 300)).map(lambda span: (span[0], span[0] + span[1]))


@given(numbers)
def test_a_number_alone_in_a_list_or_in_quotes_is_the_same(number: int) -> None:
    spellings: list[Any] = [number, [number], str(number), [str(number)], f"{number}-{number}", {number}]
    for written in (*spellings, np.int64(number)):
        assert load_config(step=written).step == {number}


@given(spans)
def test_a_range_holds_both_its_ends(span: tuple[int, int]) -> None:
    first, last = span
    assert load_config(rank=f"{first}-{last}").rank == set(range(first, last + 1))


@given(st.lists(st.one_of(numbers, spans)))
def test_a_list_is_the_union_of_its_entries(entries: list[int | tuple[int, int]]) -> None:
    written = [f"{entry[0]}-{entry[1]}" if isinstance(entry, tuple) else entry for entry in entries]
    spelt_out = [range(entry[0], entry[1] + 1) if isinstance(entry, tuple) else [entry] for entry in entries]
    assert load_config(step=written).step == {number for span in spelt_out for number in span}


@given(numbers, st.integers(1, 10**6))
def test_a_range_that_ends_before_it_begins_is_refused_with_the_right_one(last: int, length: int) -> None:
    with pytest.raises(ConfigError, match=f'ends before it begins .*; write "{last}-{last + length}"'):
        load_config(step=[f"{last + length}-{last}"])


@given(st.one_of(st.integers(max_value=-1), st.booleans(), st.floats(), st.binary(), st.lists(numbers, min_size=1)))
def test_what_is_no_number_from_0_up_is_refused(entry: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape('is not an integer from 0 up, a string like "3", or a range')):
        load_config(step=[entry])


@given(st.text().filter(lambda text: not re.fullmatch("[0-9]+(-[0-9]+)?", text)))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape('(argument "rank")')):
        load_config(rank=[text])


def test_a_range_may_not_fill_the_memory() -> None:
    assert len(load_config(step=f"1-{MAX_RANGE_LENGTH}").step) == MAX_RANGE_LENGTH
    with pytest.raises(ConfigError, match="holds more than 1000000 numbers"):
        load_config(step="0-1000000")
    with pytest.raises(ConfigError, match="is not an integer from 0 up"):
        load_config(step="9" * 5000)
