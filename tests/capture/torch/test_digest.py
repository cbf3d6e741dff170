"""A checksum stands for the content in logical order: the same content gives the same text, another one another."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tensorprobe.capture.torch import digest
from tensorprobe.capture.torch.digest import crc32_digest, hash_digest
from tests.capture.way import way  # noqa: F401
from tests.length import count_examples

DIGESTS = (crc32_digest, hash_digest)
Digest = Callable[[torch.Tensor], str]
DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int8,
    torch.uint16,
    torch.uint64,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
BITS_64 = (1 << 64) - 1


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The bytes in logical order, element by element."""
    return tensor.resolve_conj().resolve_neg().clone().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def slow_hash(tensor: torch.Tensor) -> str:
    """The formula in the docstring of the module, in plain Python."""
    size = min(tensor.element_size(), 8)
    data = bytes_of(tensor)
    words = [int.from_bytes(data[start : start + size], "little") for start in range(0, len(data), size)]
    total = 0
    for index, word in enumerate(words):
        mixed = word * 0x9E3779B97F4A7C15 & BITS_64
        mixed ^= mixed >> 32
        weight = (2 * index + 1) * 0xD6E8FEB86659FD93 & BITS_64
        weight = (weight ^ weight >> 32) | 1
        total += mixed * weight
    return f"{total & BITS_64:016x}"


def some(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 40
    return (numbers.abs() if dtype in (torch.uint16, torch.uint64) else numbers).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_md5_is_the_crc32_of_the_bytes_as_they_are(dtype: torch.dtype) -> None:
    tensor = some(dtype, 7, 9)
    assert crc32_digest(tensor) == f"{zlib.crc32(bytes_of(tensor)):08x}"


def test_md5_of_a_known_tensor() -> None:
    assert (
        crc32_digest(torch.arange(4, dtype=torch.float32)) == f"{zlib.crc32(np.arange(4, dtype='<f4').tobytes()):08x}"
    )
    assert crc32_digest(torch.empty(0, 3)) == "00000000"


def test_md5_takes_the_sixteen_bits_of_bfloat16_as_msprobe_does() -> None:
    tensor = torch.tensor([1.0, -2.0], dtype=torch.bfloat16)
    assert crc32_digest(tensor) == f"{zlib.crc32(bytes.fromhex('803f00c0')):08x}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_hash_is_the_formula_of_its_docstring(dtype: torch.dtype) -> None:
    for shape in ((), (1,), (7, 9), (0,)):
        tensor = some(dtype, *shape)
        assert hash_digest(tensor) == slow_hash(tensor)


def test_texts_have_their_length() -> None:
    for tensor in (torch.zeros(5), torch.empty(0), torch.ones(3)):
        assert len(crc32_digest(tensor)) == 8
        assert len(hash_digest(tensor)) == 16


@pytest.mark.parametrize("compute", DIGESTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_view_and_its_contiguous_copy_agree(compute: Digest, dtype: torch.dtype) -> None:
    tensor = some(dtype, 6, 8, 10)
    views = [
        tensor.transpose(0, 2),
        tensor[:, ::2, 1:],
        tensor[:1].expand(4, 8, 10),
        tensor[None].contiguous(memory_format=torch.channels_last),
    ]
    for view in views:
        assert compute(view) == compute(view.clone(memory_format=torch.contiguous_format))


@pytest.mark.parametrize("compute", DIGESTS)
def test_conjugate_and_negative_views_are_taken_as_they_read(compute: Digest) -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert compute(tensor.conj()) == compute(tensor.conj().resolve_conj()) != compute(tensor)
    assert compute(tensor.conj().imag) == compute(-tensor.imag) != compute(tensor.imag)


@pytest.mark.parametrize("compute", DIGESTS)
def test_a_transpose_is_another_content(compute: Digest) -> None:
    tensor = some(torch.float32, 16, 16)
    assert compute(tensor) != compute(tensor.t())


@pytest.mark.parametrize("compute", DIGESTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_every_swap_of_two_different_elements_is_seen(compute: Digest, dtype: torch.dtype) -> None:
    tensor = torch.tensor([0.0, 1.0, 2.0, 4.0, 0.5, 3.0, 1.0, 0.0, 8.0, 1024.0]).to(dtype)
    seen = compute(tensor)
    for first, second in itertools.combinations(range(len(tensor)), 2):
        swapped = tensor.clone()
        swapped[[first, second]] = tensor[[second, first]]
        assert (compute(swapped) == seen) == bool(tensor[first] == tensor[second])


@pytest.mark.parametrize("compute", DIGESTS)
def test_every_change_of_sign_is_seen(compute: Digest) -> None:
    tensor = torch.tensor([0.0, 1.0, -2.0, 4.0, 1e-30])
    for place in range(len(tensor)):
        flipped = tensor.clone()
        flipped[place] = -flipped[place]
        assert compute(flipped) != compute(tensor)
    assert compute(-tensor) != compute(tensor)


@settings(max_examples=count_examples(100))
@given(st.lists(st.floats(width=32), min_size=2, max_size=200), st.integers(0), st.integers(0))
def test_any_swap_is_seen(numbers: list[float], first: int, second: int) -> None:
    tensor = torch.tensor(numbers)
    first, second = first % len(numbers), second % len(numbers)
    assume(tensor[first].view(torch.int32) != tensor[second].view(torch.int32))
    swapped = tensor.clone()
    swapped[[first, second]] = tensor[[second, first]]
    assert hash_digest(tensor) == slow_hash(tensor) != hash_digest(swapped)


def test_hash_does_not_depend_on_how_the_work_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = some(torch.float32, 1000)
    whole = hash_digest(tensor)
    for size in (1, 7, 999, 1000, 1001):
        monkeypatch.setattr(digest, "_CHUNK", size)
        assert hash_digest(tensor) == whole
        assert crc32_digest(tensor) == f"{zlib.crc32(bytes_of(tensor)):08x}"


def test_hash_of_a_tensor_with_more_elements_than_weights_are_kept_for(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = some(torch.int8, 3000)
    whole = hash_digest(tensor)
    digest._first_weights.cache_clear()
    monkeypatch.setattr(digest, "_KEPT_WEIGHTS", 500)
    monkeypatch.setattr(digest, "_CHUNK", 400)
    try:
        assert hash_digest(tensor) == whole == slow_hash(tensor)
    finally:
        digest._first_weights.cache_clear()


def test_hash_in_inference_mode_and_after_it() -> None:
    digest._first_weights.cache_clear()
    tensor = some(torch.float32, 50)
    with torch.inference_mode():
        inside = hash_digest(tensor)
    assert hash_digest(tensor) == inside


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("compute", DIGESTS)
def test_sparse_tensors(compute: Digest) -> None:
    dense = torch.zeros(6, 6)
    dense[1, 2], dense[4, 0] = 3.0, -1.0
    moved = dense.roll(1, 0)
    for make_sparse in (torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_csc):
        assert compute(make_sparse(dense)) == compute(make_sparse(dense.clone()))
        assert compute(make_sparse(dense)) != compute(make_sparse(moved))
        assert compute(make_sparse(dense)) != compute(make_sparse(dense * 2))
    twice = torch.sparse_coo_tensor([[1, 1]], [1.0, 2.0], (3,))
    assert compute(twice) == compute(torch.sparse_coo_tensor([[1]], [3.0], (3,)))


def test_a_sparse_tensor_is_not_made_dense() -> None:
    huge = torch.sparse_coo_tensor([[5], [7]], [1.0], (10**9, 10**6), check_invariants=True)
    assert {crc32_digest(huge), hash_digest(huge)}


@pytest.mark.parametrize("compute", DIGESTS)
def test_the_users_tensor_can_still_be_resized(compute: Digest) -> None:
    tensor = torch.ones(4)
    compute(tensor)
    tensor.resize_(1000)  # raises if somebody took numpy's view of it
