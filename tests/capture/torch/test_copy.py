"""The file of a tensor: loads back equal, without unpickling anything, and is no larger than what it shows."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensorprobe.capture.torch.framework import TorchFramework
from tensorprobe.capture.torch.reader import TorchReader
from tests.capture.torch.dump import only_step
from tests.capture.torch.reference import make_tensor
from tests.capture.torch.training import open_session

READER = TorchReader(has_stats=True, digest_kind=None)


def through_file(tensor: torch.Tensor) -> tuple[Any, int]:
    """What is loaded from the file of a tensor, and the size of the file."""
    file, lent = io.BytesIO(), io.BytesIO()
    READER.write_file(READER.copy(tensor), file)
    READER.write_file(READER.lend(tensor), lent)  # type: ignore[arg-type]
    assert lent.tell() == file.tell()
    size = file.tell()
    file.seek(0)
    return torch.load(file, weights_only=True), size


def test_a_small_view_of_a_big_tensor_is_a_small_file() -> None:
    big = torch.randn(1000, 1000)
    for view in (big[5, :10], big[:10, 7], big.t()[2:4, 5:9], big[::500, ::500]):
        loaded, size = through_file(view)
        assert torch.equal(loaded, view)
        assert size < 4000


def test_an_expanded_tensor_is_a_small_file() -> None:
    tensor = torch.randn(3, 1, 2).expand(3, 10**9, 2)
    loaded, size = through_file(tensor)
    assert loaded.shape == tensor.shape
    assert torch.equal(loaded[:, :5], tensor[:, :5])
    assert size < 4000
    assert READER.size_bytes(tensor) == 24


COPIED: dict[str, Callable[[], torch.Tensor]] = {
    "float32": lambda: make_tensor(torch.float32, (4, 5)),
    "bfloat16": lambda: make_tensor(torch.bfloat16, (4, 5)),
    "float8": lambda: make_tensor(torch.float8_e4m3fn, (4, 5)),
    "uint64": lambda: make_tensor(torch.uint64, (4, 5)),
    "bool": lambda: make_tensor(torch.bool, (4, 5)),
    "0-d": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(0, 3),
    "transposed": lambda: make_tensor(torch.float32, (4, 5)).t(),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "conjugate": lambda: make_tensor(torch.complex64, (4, 5)).conj(),
    "conjugate and transposed": lambda: make_tensor(torch.complex64, (4, 5)).mH,
    "negative": lambda: make_tensor(torch.complex64, (4, 5)).conj().imag,
    "parameter": lambda: nn.Parameter(torch.randn(4, 5)),
    "of a graph": lambda: torch.randn(4, 5, requires_grad=True) * 2,
    "inference": torch.inference_mode()(lambda: torch.randn(4, 5) * 2),
}


@pytest.mark.parametrize("make", COPIED.values(), ids=COPIED)
def test_what_is_loaded_is_what_was_there(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    loaded, _ = through_file(tensor)
    expected = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    assert (type(loaded), loaded.dtype, loaded.shape) == (torch.Tensor, tensor.dtype, tensor.shape)
    assert not loaded.requires_grad
    assert torch.equal(loaded.contiguous().reshape(-1).view(torch.uint8), expected)


@pytest.mark.filterwarnings("ignore")
def test_sparse_and_quantized_files() -> None:
    dense = torch.eye(4) * torch.arange(4)
    for sparse in (dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc(), dense.to_sparse_bsr((2, 2))):
        assert torch.equal(through_file(sparse)[0].to_dense(), dense)
    quantized = torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8)
    assert torch.equal(through_file(quantized)[0].dequantize(), quantized.dequantize())


def test_a_copy_does_not_follow_later_writes() -> None:
    file = io.BytesIO()
    for tensor in (torch.ones(3, 4), torch.ones(3, 1).expand(3, 4), torch.ones(4, 3).t()):
        copy = READER.copy(tensor)
        tensor.untyped_storage().fill_(0)
        file.seek(0)
        READER.write_file(copy, file)
        file.seek(0)
        assert torch.equal(torch.load(file, weights_only=True), torch.ones(3, 4))


@pytest.mark.parametrize("tensor", [torch.ones(3, 4), torch.ones(100, 100)[:3, :4], torch.ones(3, 4).t()])
def test_the_size_that_a_copy_takes(tensor: torch.Tensor) -> None:
    assert READER.size_bytes(tensor) == 48


def test_a_tensor_in_the_layout_of_mkldnn() -> None:
    content = make_tensor(torch.float32, (3, 5))
    assert torch.equal(through_file(content.to_mkldnn())[0], content)


def test_what_a_transform_follows_is_stored() -> None:
    x = make_tensor(torch.float32, (3, 5))
    copies = []

    def function(x: torch.Tensor) -> torch.Tensor:
        copies.append(READER.copy(x))
        return x.sum()

    torch.func.grad(function)(x)
    assert torch.equal(copies[0].to_host(), x)


@pytest.mark.parametrize("has_idle_core", [True, False], ids=["by a thread", "at once"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_files_hold_the_value_at_the_time_of_the_call_whoever_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, has_idle_core: bool
) -> None:
    monkeypatch.setattr(TorchFramework, "has_idle_core", lambda self: has_idle_core)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True))
    x = torch.randn(3, 4)
    session = open_session(tmp_path, level=level, task="tensor")
    session.start(model)
    y = model(x)
    expected = y.detach().clone()
    y.detach().zero_()
    session.close()
    dump = only_step(tmp_path)
    record = dump.records["Functional.relu.0.forward" if level == "L1" else "Module.1.ReLU.forward.0"]
    assert torch.equal(dump.tensor(record["output"][0]), expected)
    assert session.recorder.coverage.failed == 0
