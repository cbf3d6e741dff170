from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.config import load_config
from tensorprobe.config.number_range import MAX_RANGE_LENGTH, is_past, read_numbers
from tensorprobe.config.setting import Setting
from tensorprobe.errors import ConfigError

numbers = st.integers(0, 10**9)
strides = st.integers(1, 1000)
steps = st.integers(0, 5000)
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


@given(spans, strides)
def test_a_range_with_a_stride_takes_every_so_many_from_its_first_number(span: tuple[int, int], stride: int) -> None:
    first, last = span
    assert load_config(step=f"{first}-{last}:{stride}").step == set(range(first, last + 1, stride))


@given(strides, steps, steps)
def test_every_so_many_has_no_end(stride: int, first: int, step: int) -> None:
    assert (step in load_config(step=f"every {stride}").step) == (step % stride == 0)
    assert (step in load_config(step=f"every {stride} from {first}").step) == (step in range(first, 5001, stride))
    assert first + stride * 10**12 in load_config(step=f"every {stride} from {first}").step


entries = st.one_of(
    steps,
    st.tuples(steps, st.integers(0, 300), strides).map(lambda one: f"{one[0]}-{one[0] + one[1]}:{one[2]}"),
    strides.map(lambda stride: f"every {stride}"),
    st.tuples(strides, steps).map(lambda one: f"every {one[0]} from {one[1]}"),
)


@given(st.lists(entries, min_size=1), steps)
def test_a_list_may_mix_numbers_ranges_and_series(written: list[int | str], step: int) -> None:
    assert (step in load_config(step=written).step) == any(step in load_config(step=one).step for one in written)
    assert load_config(step=written) == load_config(step=list(reversed(written)))


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("every 100", ["every 100 from 0", 300]),
        ("every  100  from  50", ["every 100 from 50", "50-250:100"]),
        (["every 2", 1], ["every 2", "every 4 from 8", 1, 2]),
    ],
)
def test_spellings_of_the_same_steps_are_equal(written: Any, same: Any) -> None:
    assert load_config(step=written) == load_config(step=same)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("every 0", 'step \'every 0\' has the stride 0 (argument "step"); write a number from 1 up, like "every 100"'),
        ("4-9:0", 'step \'4-9:0\' has the stride 0 (argument "step"); write a stride from 1 up, like "4-9:10"'),
        ("9-4:2", 'step \'9-4:2\' ends before it begins (argument "step"); write "4-9:2"'),
        (
            "5-99999999:3",
            "step '5-99999999:3' holds more than 1000000 numbers (argument \"step\"); leave the key out for no filter",
        ),
        (
            "every day",
            "step 'every day' is not an integer from 0 up, a string like \"3\", or a range like "
            '"4-6", "0-1000:100", "every 100" or "every 100 from 50" (argument "step")',
        ),
    ],
)
def test_a_series_that_is_not_understood_is_refused_with_what_to_write(written: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(step=written)
    assert str(caught.value) == text


@pytest.mark.parametrize("text", ["every100", "every", "5:2", "0-10:", "every 3 to 9", "every 3 from", "every -3"])
def test_half_a_series_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an integer from 0 up"):
        load_config(step=text)


@given(numbers, st.integers(1, 10**6))
def test_a_range_that_ends_before_it_begins_is_refused_with_the_right_one(last: int, length: int) -> None:
    with pytest.raises(ConfigError, match=f'ends before it begins .*; write "{last}-{last + length}"'):
        load_config(step=[f"{last + length}-{last}"])


@given(st.one_of(st.integers(max_value=-1), st.booleans(), st.floats(), st.binary(), st.lists(numbers, min_size=1)))
def test_what_is_no_number_from_0_up_is_refused(entry: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape('is not an integer from 0 up, a string like "3", or a range')):
        load_config(step=[entry])


@given(
    st.text().filter(lambda text: not re.fullmatch("[0-9]+(-[0-9]+(:[0-9]+)?)?|every +[0-9]+( +from +[0-9]+)?", text))
)
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape('(argument "rank")')):
        load_config(rank=[text])


def test_a_range_may_not_fill_the_memory() -> None:
    assert len(load_config(step=f"1-{MAX_RANGE_LENGTH}").step) == MAX_RANGE_LENGTH
    with pytest.raises(ConfigError, match="holds more than 1000000 numbers"):
        load_config(step="0-1000000")
    with pytest.raises(ConfigError, match="is not an integer from 0 up"):
        load_config(step="9" * 5000)


def test_an_error_that_names_the_steps_of_a_debugger_shows_them_as_they_are_written() -> None:
    assert repr(load_config(step=["every 100 from 50", "every 7", 3]).step) == "[3, 'every 7', 'every 100 from 50']"


def test_only_a_list_that_ends_is_ever_past() -> None:
    numbers = read_numbers(Setting("step", "4-6"))
    assert not is_past(6, numbers) and is_past(7, numbers)
    assert not is_past(7, read_numbers(Setting("step", ["4-6", "every 100"])))
    assert not is_past(7, read_numbers(Setting("step", [])))
