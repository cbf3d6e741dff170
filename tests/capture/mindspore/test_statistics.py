"""The statistics of a tensor of MindSpore are those of numpy in float64. NaN is left out and counted, Inf counted."""

from __future__ import annotations

import math
import warnings
from typing import Any

import hypothesis.extra.numpy as hnp
import mindspore
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor

from tensorprobe.capture.mindspore.reader import MindSporeReader
from tensorprobe.capture.mindspore.statistics import _CHUNK, reduce_array
from tensorprobe.model.record import Stats
from tests.capture.way import way  # noqa: F401
from tests.length import count_examples

NAN, INF = math.nan, math.inf
FLOATS = (mindspore.float16, mindspore.bfloat16, mindspore.float32, mindspore.float64)
SIGNED = (mindspore.int8, mindspore.int16, mindspore.int32, mindspore.int64)
UNSIGNED = (mindspore.uint8, mindspore.uint16, mindspore.uint32, mindspore.uint64)
COMPLEX = (mindspore.complex64, mindspore.complex128)
ALL_DTYPES = (*FLOATS, *SIGNED, *UNSIGNED, *COMPLEX, mindspore.bool_)

# MindSpore makes the processor take subnormal numbers for 0, numpy's too: they are left out here.
FLOAT32 = st.floats(width=32, allow_subnormal=False)
FLOAT64 = st.floats(width=64, allow_subnormal=False)


def read(tensor: Tensor) -> Stats:
    stats = MindSporeReader(has_stats=True, digest_kind=None).read(tensor, None).value.stats
    assert stats is not None
    return stats


def make_array(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape) + len(shape)).normal(size=shape) * 3


def make_tensor(dtype: Any, shape: tuple[int, ...]) -> Tensor:
    numbers = make_array(shape)
    if dtype in COMPLEX:
        return Tensor(numbers - 2j * numbers, dtype)
    if dtype == mindspore.bool_:
        return Tensor(numbers > 1)
    if dtype in FLOATS:
        return Tensor(numbers, dtype)
    return Tensor(np.abs(numbers * 10) if dtype in UNSIGNED else numbers * 10, dtype)


def numbers_of(tensor: Tensor) -> np.ndarray[Any, Any]:
    """All elements as float64; of complex numbers the magnitude."""
    if tensor.dtype == mindspore.bfloat16:
        return tensor.float().asnumpy().astype(np.float64)
    array = tensor.asnumpy()
    return np.abs(array.astype(np.complex128)) if array.dtype.kind == "c" else array.astype(np.float64)


def check_stats(stats: Stats, numbers: np.ndarray[Any, Any]) -> None:
    """Exact extremes and counts, Mean and Norm to one part in a million."""
    assert stats.reason is None
    assert (stats.nan_count, stats.inf_count) == (int(np.isnan(numbers).sum()), int(np.isinf(numbers).sum()))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        largest = np.nanmax(np.abs(numbers))
        scale = largest if 0 < largest < INF else 1.0
        norm = float(np.sqrt(np.nansum((numbers / scale) ** 2)) * scale)
        mean = np.nanmean(numbers / scale) * scale
        assert_same(stats.max, np.nanmax(numbers))
        assert_same(stats.min, np.nanmin(numbers))
        assert_close(stats.mean, mean, np.nanmean(np.abs(numbers) / scale) * scale)
        assert_close(stats.norm, NAN if np.isnan(numbers).all() else norm, norm)


def assert_same(candidate: Any, reference: float) -> None:
    assert math.isclose(candidate, reference, rel_tol=1e-15) or (math.isnan(candidate) and math.isnan(reference))


def assert_close(candidate: Any, reference: float, scale: float) -> None:
    if math.isfinite(reference):
        assert abs(candidate - reference) <= 1e-6 * scale
    else:
        assert_same(candidate, reference)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4, 5)], ids=str)
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_statistics_of_every_dtype(dtype: Any, shape: tuple[int, ...]) -> None:
    tensor = make_tensor(dtype, shape)
    check_stats(read(tensor), numbers_of(tensor))


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED], ids=str)
def test_extremes_of_integers_are_integers_and_exact(dtype: Any) -> None:
    limits = np.iinfo(mindspore.dtype_to_nptype(dtype))
    stats = read(Tensor(np.array([limits.min, 3, limits.max], limits.dtype)))
    assert (stats.min, stats.max) == (limits.min, limits.max) and isinstance(stats.max, int)


@pytest.mark.parametrize(("truths", "largest", "smallest"), [([True, False], True, False), ([True], True, True)])
def test_truth_values(truths: list[bool], largest: bool, smallest: bool) -> None:
    stats = read(Tensor(truths))
    assert (stats.max, stats.min, stats.mean) == (largest, smallest, sum(truths) / len(truths))


@pytest.mark.parametrize("view", [lambda x: x.T, lambda x: x[1:], lambda x: x[:, ::2], lambda x: x[:, 1]])
@pytest.mark.parametrize("dtype", [mindspore.float32, mindspore.bfloat16, mindspore.int32], ids=str)
def test_views(view: Any, dtype: Any) -> None:
    tensor = view(make_tensor(dtype, (4, 6)))
    check_stats(read(tensor), numbers_of(tensor))


@pytest.mark.parametrize("numbers", [[NAN], [NAN, 1.0], [INF, -INF], [INF, 1.0], [NAN, INF, -2.0], [NAN, NAN]], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_is_counted_and_left_out_and_infinities_are_counted(dtype: Any, numbers: list[float]) -> None:
    tensor = Tensor(np.array(numbers, np.float32), dtype)
    check_stats(read(tensor), numbers_of(tensor))


@pytest.mark.parametrize("size", [1e300, 1e-300, 1e200, 1e-307])
def test_numbers_whose_squares_leave_the_range(size: float) -> None:
    tensor = Tensor(np.array([size, -2 * size, size / 3]), mindspore.float64)
    check_stats(read(tensor), numbers_of(tensor))


def test_a_large_tensor_loses_no_precision() -> None:
    numbers = np.full(3 * _CHUNK + 17, 0.1, np.float32)
    numbers[-1] = 1000.0
    check_stats(reduce_array(numbers), numbers.astype(np.float64))


def test_nan_in_the_last_of_several_parts_is_found() -> None:
    numbers = np.ones(3 * _CHUNK + 17, np.float32)
    numbers[-1] = NAN
    stats = reduce_array(numbers)
    assert (stats.nan_count, stats.max, stats.mean) == (1, 1.0, 1.0)


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)], ids=str)
def test_an_empty_tensor_says_so(shape: tuple[int, ...]) -> None:
    stats = read(Tensor(np.zeros(shape, np.float32)))
    assert stats.reason == "empty" and stats.max is None


@settings(max_examples=count_examples(150))
@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=5), elements=FLOAT32))
def test_any_float32(array: np.ndarray[Any, Any]) -> None:
    check_stats(reduce_array(array), array.astype(np.float64))


@settings(max_examples=count_examples(150))
@given(hnp.arrays(np.float64, st.integers(1, 40), elements=FLOAT64))
def test_any_float64(array: np.ndarray[Any, Any]) -> None:
    check_stats(reduce_array(array), array)


@settings(max_examples=count_examples(100))
@given(hnp.arrays(np.int64, st.integers(1, 40)))
def test_any_int64(array: np.ndarray[Any, Any]) -> None:
    stats = reduce_array(array)
    assert (stats.max, stats.min) == (int(array.max()), int(array.min()))
    assert_close(stats.mean, float(np.mean(array.astype(np.float64))), float(np.abs(array.astype(np.float64)).mean()))
