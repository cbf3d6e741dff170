"""Tensor files of numpy: every kind of tensor, whatever numpy knows of it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tensorprobe.capture.torch.npy_file import NpyFiles

PLAIN = [torch.float16, torch.float32, torch.float64, torch.int8, torch.int64, torch.uint8, torch.bool, torch.complex64]
WIDENED = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
NUMBERS = torch.tensor([[0.0, 1.0, 1.5], [2.0, 3.0, 0.5]])


def write(tensor: torch.Tensor) -> np.ndarray:
    file = io.BytesIO()
    NpyFiles().write(tensor, file)
    file.seek(0)
    array: np.ndarray = np.load(file, allow_pickle=False)
    return array


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_what_numpy_knows_is_written_as_it_is(dtype: torch.dtype) -> None:
    tensor = NUMBERS.to(dtype)
    array = write(tensor)
    assert array.dtype == tensor.numpy().dtype
    np.testing.assert_array_equal(array, tensor.numpy())


@pytest.mark.parametrize("dtype", WIDENED, ids=str)
def test_what_it_does_not_know_is_float32(dtype: torch.dtype) -> None:
    array = write(NUMBERS.to(dtype))
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, NUMBERS.numpy())


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.T,
        lambda x: x[:, ::2],
        lambda x: x[0].expand(4, 3),
        lambda x: x.sum(),
        lambda x: x[:0],
        lambda x: x.to_sparse(),
        lambda x: torch.quantize_per_tensor(x, 0.5, 0, torch.qint8),
    ],
    ids=["transposed", "strided", "expanded", "scalar", "empty", "sparse", "quantized"],
)
def test_however_it_lies_in_memory(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensor = change(NUMBERS)
    dense = tensor.dequantize() if tensor.is_quantized else tensor.to_dense()
    np.testing.assert_array_equal(write(tensor), dense.numpy())


def test_the_users_memory_can_still_be_resized() -> None:
    tensor = NUMBERS.clone()
    write(tensor)
    assert tensor.resize_(100).numel() == 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_file_is_read_back_as_what_was_stored(tmp_path: Path, dtype: torch.dtype) -> None:
    files, tensor = NpyFiles(), NUMBERS.to(dtype).T
    with (tmp_path / "x.npy").open("wb") as file:
        files.write(tensor, file)
    assert torch.equal(files.read(tmp_path / "x.npy"), files.stored(tensor))
