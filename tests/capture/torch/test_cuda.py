"""On a GPU: bit-identical, nobody waits, and the numbers are those of the host."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.capture.torch.dump import only_step
from tests.capture.torch.training import Observed, difference, open_session, recorded_step, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

WAYS: list[dict[str, Any]] = [
    {"task": "statistics"},
    {"task": "tensor"},
    {"task": "statistics", "summary_mode": "md5"},
    {"task": "statistics", "summary_mode": "hash"},
    {"task": "tensor", "async_dump": True},
]


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@cache
def plain(model: str) -> Observed:
    return train(model, device="cuda")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_training_on_a_gpu_is_bit_identical_while_it_is_recorded(
    model: str, level: str, way: dict[str, Any], tmp_path: Path
) -> None:
    session = open_session(tmp_path, level=level, **way)
    captured = train(model, partial(recorded_step, session), device="cuda")
    assert difference(plain(model), captured) == []
    assert session.recorder.coverage.failed == 0
    session.close()


@pytest.mark.parametrize("way", [{}, {"summary_mode": "md5"}, {"summary_mode": "hash"}, {"task": "tensor"}], ids=str)
def test_nobody_waits_for_the_device_while_calls_are_recorded(tmp_path: Path, way: dict[str, Any]) -> None:
    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    session = open_session(tmp_path, level="L1", **way)
    session.start()
    torch.cuda.set_sync_debug_mode("error")  # a synchronisation inside capture would be counted as a failure
    try:
        (torch.relu(x) @ x).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    session.stop()
    assert session.recorder.coverage.failed == 0
    assert session.recorder.coverage.recorded == 6
    session.close()


@pytest.mark.parametrize("mode", ["hash", "md5"])
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool]
)
def test_statistics_and_checksums_are_those_of_the_host(tmp_path: Path, mode: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    content = (torch.randn(300, 257) * 5).to(dtype)
    if dtype.is_floating_point:
        content[3, 4], content[5, 6] = float("nan"), float("inf")
    leaves = [describe(tmp_path / device, content.to(device), mode) for device in ("cpu", "cuda")]
    for reference, candidate in zip(*leaves, strict=True):
        assert candidate[mode] == reference[mode]
        assert candidate.get("nan_count") == reference.get("nan_count")
        assert candidate.get("inf_count") == reference.get("inf_count")
        for key in ("Max", "Min", "Mean", "Norm"):
            assert candidate[key] == pytest.approx(reference[key], rel=1e-6)


def describe(folder: Path, content: torch.Tensor, mode: str) -> list[dict[str, Any]]:
    """Leaves of a tensor, of a transposed view, and of a view with gaps."""
    session = open_session(folder, level="L1", summary_mode=mode)
    session.start()
    content.clone(), content.t(), content[:, 3:9]
    session.close()
    return [fields["output"][0] for fields in only_step(folder).records.values()]
