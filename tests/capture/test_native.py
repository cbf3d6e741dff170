"""The compiled part of capture, and life without it."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.capture import native
from tensorprobe.store.sketch import BLOCK, sketch_array

needs_compiled = pytest.mark.skipif(not native.is_compiled(), reason="the compiled part was not built")
CHUNK = 256 * BLOCK
KINDS = {"float32": native.FLOAT32, "float64": native.FLOAT64, "float16": native.FLOAT16}


def address_of(array: np.ndarray[Any, Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def reduce(array: np.ndarray[Any, Any], threads: int = 1) -> list[Any]:
    found = native.reduce_memory(address_of(array), array.size, KINDS[array.dtype.name], threads)
    assert found is not None
    return found


def assert_near(found: Sequence[float], expected: Sequence[float], scale: float) -> None:
    assert all(abs(one - other) <= 1e-6 * scale for one, other in zip(found, expected, strict=True)), (found, expected)


@needs_compiled
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("size", [1, 15, 16, 17, BLOCK - 1, BLOCK, BLOCK + 1, 20 * BLOCK + 5, CHUNK, 2 * CHUNK + 33])
def test_the_numbers_are_those_of_float64_whatever_the_size(dtype: str, size: int) -> None:
    array = np.random.default_rng(size).normal(0.1, 1, size).astype(dtype)
    wide = array.astype(np.float64)
    largest, smallest, total, norm, nans, infs, *sketch = reduce(array)
    assert (largest, smallest, nans, infs) == (wide.max(), wide.min(), 0, 0)
    assert_near([total, norm], [wide.sum(), np.linalg.norm(wide)], np.abs(wide).sum())
    assert_near(sketch, sketch_array(wide) or [], float(np.linalg.norm(wide)))


@needs_compiled
@pytest.mark.parametrize("dtype", KINDS)
def test_the_number_of_threads_changes_no_bit(dtype: str) -> None:
    array = np.random.default_rng(1).normal(size=5 * CHUNK + 77).astype(dtype)
    array[CHUNK + 3] = math.nan
    assert reduce(array, 1) == reduce(array, 2) == reduce(array, 7)


@needs_compiled
@given(st.lists(st.floats(width=32), min_size=1, max_size=60), st.integers(0, 3 * BLOCK))
def test_nan_and_infinities_are_counted_wherever_they_are(numbers: list[float], before: int) -> None:
    array = np.concatenate([np.ones(before), numbers]).astype(np.float32)
    wide = array.astype(np.float64)
    real = wide[~np.isnan(wide)]
    largest, smallest, total, norm, nans, infs, *sketch = reduce(array)
    assert (nans, infs) == (np.isnan(wide).sum(), np.isinf(wide).sum())
    assert (largest, smallest) == ((real.max(), real.min()) if real.size else (-math.inf, math.inf))
    if not infs:
        assert_near([total, norm], [real.sum(), np.sqrt((real**2).sum())], np.abs(real).sum())
        assert_near(sketch, sketch_array(wide) or [0.0] * 4, np.abs(real).sum())


@needs_compiled
@pytest.mark.parametrize("size", [1e-40, 1e-22, 1e-10, 1e10, 1e22, 3e38])
def test_squares_that_float32_cannot_hold_are_added_up_in_float64(size: float) -> None:
    array = (np.random.default_rng(0).normal(size=3 * BLOCK) * size / 6).astype(np.float32)
    wide = array.astype(np.float64)
    assert reduce(array)[3] == pytest.approx(np.linalg.norm(wide), rel=1e-6)


@needs_compiled
@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_squares_that_float64_cannot_hold_are_left_to_the_twin(size: float) -> None:
    array = np.full(100, size)
    assert native.reduce_memory(address_of(array), array.size, native.FLOAT64, 1) is None


@needs_compiled
def test_what_cannot_be_read_is_refused() -> None:
    from tensorprobe.capture import _native

    with pytest.raises(ValueError, match="unknown kind"):
        _native.reduce(address_of(np.ones(3)), 3, 9, 1)
    with pytest.raises(ValueError, match="unknown width"):
        _native.hash_words(address_of(np.ones(3)), 3, 7, 0)


@pytest.mark.parametrize(("value", "words"), [("0", "numpy and torch"), ("1", "")])
def test_a_variable_asks_for_the_twin_and_run_json_says_which_it_was(value: str, words: str) -> None:
    code = "from tensorprobe.capture import circumstances as c; print(c.describe_circumstances('x', {})['reduced_by'])"
    environment = {"TENSORPROBE_NATIVE": value, "PYTHONPATH": ":".join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert ended.stdout.strip() == (words or ("compiled code" if native.is_compiled() else "numpy and torch"))


@needs_compiled
def test_the_sketch_of_a_tensor_of_many_chunks_is_that_of_its_twin() -> None:
    some = np.random.default_rng(3).normal(size=CHUNK // 2).astype(np.float16)
    array = np.tile(some, 2 * 66)
    largest, smallest, _, norm, nans, infs, *sketch = reduce(array, threads=2)
    assert (largest, smallest, nans, infs) == (some.max(), some.min(), 0, 0)
    assert norm == pytest.approx(np.linalg.norm(some.astype(np.float64)) * math.sqrt(2 * 66), rel=1e-6)
    assert_near(sketch, sketch_array(array) or [], norm)
