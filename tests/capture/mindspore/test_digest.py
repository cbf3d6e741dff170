"""Checksums: `md5`, a CRC-32 of the bytes, and `hash`, which sees every swap and every change."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import mindspore
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor

from tensorprobe.capture.mindspore import digest
from tensorprobe.capture.mindspore.content import array_of
from tensorprobe.capture.mindspore.digest import crc32_digest, hash_digest
from tests.capture.mindspore.test_statistics import ALL_DTYPES, make_tensor
from tests.capture.way import way  # noqa: F401
from tests.length import count_examples

Digest = Callable[[np.ndarray[Any, Any]], str]
DIGESTS = (crc32_digest, hash_digest)
BITS_64 = (1 << 64) - 1


def slow_hash(array: np.ndarray[Any, Any]) -> str:
    """The formula, in plain Python."""
    size = min(array.dtype.itemsize, 8)
    data = array.tobytes()
    words = [int.from_bytes(data[start : start + size], "little") for start in range(0, len(data), size)]
    total = 0
    for index, word in enumerate(words):
        mixed = word * 0x9E3779B97F4A7C15 & BITS_64
        mixed ^= mixed >> 32
        weight = (2 * index + 1) * 0xD6E8FEB86659FD93 & BITS_64
        weight = (weight ^ weight >> 32) | 1
        total += mixed * weight
    return f"{total & BITS_64:016x}"


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_md5_is_the_crc32_of_the_bytes_as_they_are(dtype: Any) -> None:
    tensor = make_tensor(dtype, (3, 5))
    assert crc32_digest(array_of(tensor)) == f"{zlib.crc32(tensor.get_bytes()):08x}"


def test_md5_of_a_known_tensor() -> None:
    assert crc32_digest(array_of(Tensor([1.0, 2.0]))) == f"{zlib.crc32(bytes.fromhex('0000803f00000040')):08x}"


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_hash_is_its_formula(dtype: Any) -> None:
    array = array_of(make_tensor(dtype, (3, 5)))
    assert hash_digest(array) == slow_hash(array)


@pytest.mark.parametrize("compute", DIGESTS)
@pytest.mark.parametrize("dtype", [mindspore.float32, mindspore.bfloat16, mindspore.int64], ids=str)
def test_a_view_and_its_contiguous_copy_agree(compute: Digest, dtype: Any) -> None:
    tensor = make_tensor(dtype, (4, 6))
    for view in (tensor.T, tensor[1:, ::2], tensor[:, 1]):
        assert compute(array_of(view)) == compute(np.ascontiguousarray(array_of(view)))
    assert compute(array_of(tensor.T)) != compute(array_of(tensor))


@pytest.mark.parametrize("compute", DIGESTS)
def test_empty_and_scalar_tensors_have_one(compute: Digest) -> None:
    sizes = {crc32_digest: 8, hash_digest: 16}
    for array in (np.zeros(0, np.float32), np.float32(3.0).reshape(())):
        assert len(compute(array)) == sizes[compute]


@settings(max_examples=count_examples(100))
@given(st.lists(st.floats(width=32, allow_subnormal=False), min_size=2, max_size=30, unique=True), st.data())
def test_any_swap_is_seen(numbers: list[float], data: st.DataObject) -> None:
    first, second = data.draw(st.tuples(*[st.integers(0, len(numbers) - 1)] * 2))
    array = np.array(numbers, np.float32)
    swapped = array.copy()
    swapped[[first, second]] = array[[second, first]]
    is_same = array.tobytes() == swapped.tobytes()
    assert (hash_digest(array) == hash_digest(swapped)) is is_same


def test_hash_does_not_depend_on_how_the_work_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    whole = hash_digest(array)
    monkeypatch.setattr(digest, "_CHUNK", 64)
    assert hash_digest(array) == whole
    monkeypatch.setattr(digest, "_KEPT_WEIGHTS", 100)
    assert hash_digest(array) == whole
