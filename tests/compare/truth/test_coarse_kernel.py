"""A kernel with few digits is no alarm where all results are right: it is a remark."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.pytorch import PrecisionDebugger


@contextmanager
def coarse_tanh(error: float) -> Iterator[None]:
    """torch's own kernel is replaced by one that is off by so much where its argument is large."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a kernel is replaced
        library.impl("tanh", lambda x: torch.where(x > 1, 1 - error, 1) * (1 - 2 / (torch.exp(2 * x) + 1)), "CPU")
    try:
        yield
    finally:
        library._destroy()


def record(folder: Path) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
    x, labels = torch.randn(64, 16), torch.randint(0, 8, (64,))
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(folder), level="L1", task="tensor")
    debugger.start(model)
    F.cross_entropy(model(x), labels).backward()
    debugger.stop()
    debugger.step()
    PrecisionDebugger.reset()
    return folder


@pytest.mark.parametrize("error", [3e-5, 0.03])
def test_a_kernel_is_blamed_only_for_what_shows_in_the_results(error: float, tmp_path: Path) -> None:
    reference = record(tmp_path / "r")
    with coarse_tanh(error):
        candidate = record(tmp_path / "c")
    verdict = tensorprobe.compare(reference, candidate).verdict
    if error == 0.03:
        assert (
            verdict.kind == "source"
            and "in the candidate Torch.tanh.0.forward in module 1 goes wrong" in verdict.headline
        )
    else:
        assert verdict.kind == "agree", verdict.headline
        assert any(line.startswith("coarse: Torch.tanh.0.") for line in verdict.evidence), verdict.evidence
