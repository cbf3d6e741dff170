"""On a GPU: a tensor with more elements than 32 bits can count, and the memory that its statistics take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tensorprobe.capture.torch.digest import hash_digest
from tensorprobe.capture.torch.statistics import DeviceBuffer, Extent
from tensorprobe.capture.torch.verification import is_wanted
from tests.capture.torch.dump import only_step
from tests.capture.torch.training import open_session

COUNT = (1 << 31) + 7
NEEDED_BYTES = 16 << 30
MAX_BYTES = 64 << 20
PIECE = 1 << 26


def has_room() -> bool:
    return torch.cuda.is_available() and torch.cuda.mem_get_info()[0] >= NEEDED_BYTES


pytestmark = pytest.mark.skipif(not has_room(), reason="needs a CUDA device with 16 GiB of free memory")


@pytest.fixture(scope="module")
def large() -> Iterator[torch.Tensor]:
    """Its largest and its smallest element are among the last seven, which no index of 32 bits reaches."""
    torch.manual_seed(11)
    content = torch.empty(COUNT, dtype=torch.bfloat16, device="cuda")
    for piece in content.split(PIECE):
        piece.normal_(0.25)
    content[-1], content[-3] = 50.0, -60.0
    yield content
    del content
    torch.cuda.empty_cache()


@pytest.mark.skipif(is_wanted(), reason="verify mode copies every value")
@pytest.mark.parametrize("mode", ["statistics", "hash"])
def test_statistics_of_a_tensor_with_more_than_2_to_the_31_elements(
    tmp_path: Path, large: torch.Tensor, mode: str
) -> None:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    session = open_session(tmp_path, level="L1", summary_mode=mode)
    session.start()
    large.view(1, COUNT)
    session.stop()
    used = torch.cuda.memory_allocated() - before
    peak = torch.cuda.max_memory_allocated() - before
    session.close()
    assert used <= MAX_BYTES and peak <= MAX_BYTES
    record = only_step(tmp_path).records["Tensor.view.0.forward"]
    for leaf in (record["input_args"][0], record["output"][0]):
        check_numbers(leaf, large)
        assert mode == "statistics" or leaf["hash"] == hash_digest(large)


def check_numbers(leaf: dict[str, float], content: torch.Tensor) -> None:
    """Against float64, in pieces that are added up on the host."""
    total = squares = 0.0
    for piece in content.split(PIECE):
        exact = piece.double()
        total += exact.sum().item()
        squares += exact.square().sum().item()
    norm = math.sqrt(squares)
    assert (leaf["Max"], leaf["Min"]) == (50.0, -60.0)
    assert leaf["Norm"] == pytest.approx(norm, rel=1e-7)
    assert leaf["Mean"] == pytest.approx(total / COUNT, abs=1e-6 * norm / COUNT)
    buffer = DeviceBuffer(content.device)
    stats = buffer.add(content, Extent(content.dtype, COUNT))
    buffer.fetch()
    assert leaf["Sketch"] == pytest.approx(stats.sketch, abs=1e-6 * norm)


@pytest.mark.skipif(is_wanted(), reason="verify mode copies every value")
def test_the_memory_that_statistics_take_does_not_grow_with_the_window(tmp_path: Path) -> None:
    """Many values, of each dtype that the kernel reads and of one that it does not."""
    tensors = [
        torch.ones(1 << 20, device="cuda").to(dtype)
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int64)
    ]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    session = open_session(tmp_path, level="L1")
    session.start()
    for _ in range(2000):
        for tensor in tensors:
            tensor.neg()
    session.stop()
    used = torch.cuda.memory_allocated() - before
    session.close()
    assert used <= MAX_BYTES
