"""The same numbers have the same checksums and statistics in both frameworks, so that their runs can be compared."""

from __future__ import annotations

from typing import Any

import mindspore
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tensorprobe.capture.mindspore.reader import MindSporeReader
from tensorprobe.capture.torch.reader import TorchReader
from tensorprobe.model.record import Value
from tests.length import count_examples

Array = np.ndarray[Any, Any]
NUMPY_DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
NUMPY_DTYPES += ["complex64", "complex128"]


def read_both(array: Array, digest_kind: str, dtype: str | None = None) -> tuple[Value, Value]:
    """As PyTorch's reader sees it, and as MindSpore's does; `dtype` where numpy has no such."""
    ours = torch.from_numpy(array.copy()), mindspore.Tensor(array)
    if dtype is not None:
        ours = ours[0].to(getattr(torch, dtype)), ours[1].astype(getattr(mindspore, dtype))
    readers = [kind(has_stats=True, digest_kind=digest_kind) for kind in (TorchReader, MindSporeReader)]
    values = [reader.read(tensor, None).value for reader, tensor in zip(readers, ours, strict=True)]
    for reader in readers:
        reader.fetch()
    return values[0], values[1]


def make_array(dtype: str, shape: tuple[int, ...]) -> Array:
    numbers = np.random.default_rng(len(shape)).normal(size=shape) * 20
    return np.array(np.abs(numbers) if dtype.startswith("u") else numbers, dtype)


@pytest.mark.parametrize("kind", ["md5", "hash"])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4, 2), (300, 700)], ids=str)
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_checksums_are_the_same(dtype: str, shape: tuple[int, ...], kind: str) -> None:
    first, second = read_both(make_array(dtype, shape), kind)
    assert first.digest == second.digest is not None and first.digest_kind == second.digest_kind


@pytest.mark.parametrize("kind", ["md5", "hash"])
def test_checksums_of_bfloat16_are_the_same(kind: str) -> None:
    first, second = read_both(make_array("float32", (7, 5)), kind, "bfloat16")
    assert first.digest == second.digest is not None


@pytest.mark.parametrize("kind", ["md5", "hash"])
@settings(max_examples=count_examples(60))
@given(array=hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32, allow_subnormal=False)))
def test_any_numbers_have_the_same_checksum(array: Array, kind: str) -> None:
    first, second = read_both(array, kind)
    assert first.digest == second.digest


@pytest.mark.parametrize("shape", [(), (5,), (3, 4, 2), (300, 700)], ids=str)
@pytest.mark.parametrize("dtype", [*NUMPY_DTYPES, "bfloat16"])
def test_statistics_are_the_same(dtype: str, shape: tuple[int, ...]) -> None:
    is_bfloat16 = dtype == "bfloat16"
    array = make_array("float32" if is_bfloat16 else dtype, shape)
    first, second = (value.stats for value in read_both(array, "md5", dtype if is_bfloat16 else None))
    assert (first.max, first.min, type(first.max)) == (second.max, second.min, type(second.max))
    assert first.mean == pytest.approx(second.mean, rel=1e-6, abs=1e-9) and first.norm == pytest.approx(second.norm)


@pytest.mark.parametrize("numbers", [[np.nan], [np.nan, 1.0], [np.inf, -np.inf], [np.nan, np.inf, -2.0]], ids=str)
def test_what_is_not_finite_is_counted_the_same(numbers: list[float]) -> None:
    first, second = (value.stats for value in read_both(np.array(numbers, np.float32), "md5"))
    assert (first.nan_count, first.inf_count) == (second.nan_count, second.inf_count)
    for name in ("max", "min", "mean", "norm"):
        assert getattr(first, name) == pytest.approx(getattr(second, name), nan_ok=True)
