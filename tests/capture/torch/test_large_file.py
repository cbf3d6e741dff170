"""Files of large tensors are those of torch.save, whatever pieces their elements come in."""

from __future__ import annotations

import ctypes
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprobe.capture.torch import tensor_file
from tensorprobe.capture.torch.large_file import DTYPES, write_pieces
from tensorprobe.store.tensor_file import open_tensor
from tests.length import count_examples

SORTED = sorted(DTYPES, key=str)


def elements_of(tensor: torch.Tensor) -> bytes:
    return bytes((ctypes.c_char * tensor.nbytes).from_address(tensor.untyped_storage().data_ptr()))


@settings(max_examples=count_examples(60))
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.sampled_from(SORTED), st.data())
def test_whatever_the_pieces_are_the_tensor_is_read_back(
    shape: list[int], dtype: torch.dtype, data: st.DataObject
) -> None:
    tensor = (torch.arange(torch.Size(shape).numel()) % 100).to(dtype).reshape(shape)
    tensor = tensor.permute(data.draw(st.permutations(range(tensor.dim()))))
    elements = elements_of(tensor)
    ends = sorted(data.draw(st.lists(st.integers(0, len(elements)), max_size=3)))
    pieces = [elements[begin:end] for begin, end in zip([0, *ends], [*ends, len(elements)], strict=True)]
    file = io.BytesIO()
    write_pieces((dtype, tuple(tensor.shape), tensor.stride()), pieces, file)
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
    file.seek(0)
    read = torch.load(file, weights_only=True)
    assert (read.dtype, read.shape, read.stride()) == (dtype, tensor.shape, tensor.stride())
    assert torch.equal(read, tensor) and not read.requires_grad


def test_the_elements_can_be_mapped_into_memory(tmp_path: Path) -> None:
    tensor, path = torch.randn(33, 7), tmp_path / "tensor.pt"
    with path.open("wb") as file:
        write_pieces((tensor.dtype, tuple(tensor.shape), tensor.stride()), [elements_of(tensor)], file)
    assert torch.equal(torch.load(path, weights_only=True, mmap=True), tensor)
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        begin = archive.getinfo("archive/data/0").header_offset
    name_length, extra_length = struct.unpack_from("<26xHH", content, begin)
    assert (begin + 30 + name_length + extra_length) % 64 == 0


@pytest.mark.parametrize("limit", [zipfile.ZIP64_LIMIT, 100], ids=["below 4 GB", "as above 4 GB"])
@pytest.mark.parametrize("dtype", SORTED, ids=str)
def test_our_own_reader_reads_it(
    dtype: torch.dtype, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", limit)
    tensor, path = (torch.arange(105) % 50).to(dtype).reshape(7, 5, 3).permute(2, 0, 1), tmp_path / "tensor.pt"
    with path.open("wb") as file:
        write_pieces((dtype, tuple(tensor.shape), tensor.stride()), [elements_of(tensor)], file)
    assert torch.equal(torch.load(path, weights_only=True), tensor)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    np.testing.assert_array_equal(np.asarray(open_tensor(path, str(dtype))), tensor.to(wide).numpy())


def test_the_same_files_are_in_it_as_torch_save_has(tmp_path: Path) -> None:
    tensor, ours, theirs = torch.randn(3, 4), io.BytesIO(), io.BytesIO()
    write_pieces((tensor.dtype, tuple(tensor.shape), tensor.stride()), [elements_of(tensor)], ours)
    torch.save(tensor, theirs)
    with zipfile.ZipFile(ours) as one, zipfile.ZipFile(theirs) as other:
        assert one.namelist() == other.namelist()
        for name in one.namelist():
            if not name.endswith(("data.pkl", "serialization_id")):
                assert one.read(name) == other.read(name)


def test_a_large_tensor_of_the_host_is_written_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_file, "_MAX_BYTES", 64)
    monkeypatch.setattr(tensor_file, "make_frame", None)  # which makes a copy of such a file in memory
    tensor, file = torch.randn(5, 7).T, io.BytesIO()
    tensor_file.write_tensor(tensor, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True), tensor)
