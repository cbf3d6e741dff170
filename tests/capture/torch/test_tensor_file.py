"""Tensor files are those of torch.save: torch reads them, and they are sound archives."""

from __future__ import annotations

import io
import zipfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprobe.capture.torch.large_file import DTYPES as PLAIN
from tensorprobe.capture.torch.tensor_file import make_frame, write_tensor
from tests.length import count_examples

DTYPES = sorted(PLAIN, key=str)


def written(tensor: torch.Tensor) -> bytes:
    buffer = io.BytesIO()
    write_tensor(tensor, buffer)
    return buffer.getvalue()


def filled(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 100).to(dtype).reshape(shape)


def check(tensor: torch.Tensor) -> None:
    content = written(tensor)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
    read = torch.load(io.BytesIO(content), weights_only=True)
    assert read.dtype == tensor.dtype and read.shape == tensor.shape and read.stride() == tensor.stride()
    assert torch.equal(read, tensor) and not read.requires_grad


@settings(max_examples=count_examples(60))
@given(st.lists(st.integers(1, 6), max_size=4), st.sampled_from(DTYPES), st.data())
def test_what_is_written_is_read_back_with_its_strides(
    shape: list[int], dtype: torch.dtype, data: st.DataObject
) -> None:
    tensor = filled(tuple(shape), dtype)
    order = data.draw(st.permutations(range(tensor.dim())))
    check(tensor.permute(order))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_has_a_frame_and_a_second_file_has_its_own_elements(dtype: torch.dtype) -> None:
    assert make_frame(dtype, (5, 3), (3, 1)) is not None
    first, second = filled((5, 3), dtype), filled((5, 3), dtype).flip(0)
    check(first)
    check(second)


def test_a_file_is_that_of_torch_save_apart_from_its_identity() -> None:
    tensor = torch.randn(7, 11)
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    with zipfile.ZipFile(io.BytesIO(written(tensor))) as ours, zipfile.ZipFile(buffer) as theirs:
        assert ours.namelist() == theirs.namelist()
        for name in ours.namelist():
            if not name.endswith("serialization_id"):  # made from the checksums of the first file of its kind
                assert ours.read(name) == theirs.read(name)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, 4).to_sparse(),
        torch.empty(0, 3),
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8),
        torch.randn(3).to(torch.float8_e4m3fn),
        torch.randn(10)[2:5],
        torch.randn(1).expand(5),
        torch.arange(4.0)[0:1].expand(4),
        torch.arange(4.0)[2:].expand(2, 2),
        torch.arange(4.0).as_strided((2, 2), (1, 1)),
    ],
    ids=[
        "sparse",
        "empty",
        "conjugate",
        "quantized",
        "float8",
        "part of a storage",
        "expanded",
        "expanded to the size of its storage",
        "expanded from the middle",
        "overlapping",
    ],
)
def test_what_is_not_plain_goes_through_torch_save(tensor: torch.Tensor) -> None:
    read = torch.load(io.BytesIO(written(tensor)), weights_only=True)
    assert read.layout == tensor.layout and read.shape == tensor.shape
    if tensor.layout is torch.strided and not tensor.is_quantized:
        assert torch.equal(read.to(torch.complex64), tensor.to(torch.complex64))


def test_the_storage_of_the_tensor_stays_resizable() -> None:
    tensor = torch.randn(8)
    written(tensor)
    assert tensor.untyped_storage().resizable()
