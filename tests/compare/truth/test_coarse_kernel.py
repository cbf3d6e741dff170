"""A kernel with few digits is no alarm where all results are right: it is a remark."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.pytorch import PrecisionDebugger


@contextmanager
def replaced(name: str, kernel: Callable[..., torch.Tensor]) -> Iterator[None]:
    """torch's own kernel is replaced by this one."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a kernel is replaced
        library.impl(name, kernel, "CPU")
    try:
        yield
    finally:
        library._destroy()


def coarse_tanh(x: torch.Tensor, error: float) -> torch.Tensor:
    """Off by so much where its argument is large."""
    return torch.where(x > 1, 1 - error, 1) * (1 - 2 / (torch.exp(2 * x) + 1))


def record(folder: Path, keeps_gradients: bool = True) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
    x, labels = torch.randn(64, 16), torch.randint(0, 8, (64,))
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(folder), level="L1", task="tensor")
    debugger.start(model)
    loss = F.cross_entropy(model(x), labels)
    if keeps_gradients:
        loss.backward()
    else:
        torch.autograd.grad(loss, list(model.parameters()))
    debugger.stop()
    debugger.step()
    PrecisionDebugger.reset()
    return folder


@pytest.mark.parametrize("error", [3e-5, 0.03])
def test_a_kernel_is_blamed_only_for_what_shows_in_the_results(error: float, tmp_path: Path) -> None:
    reference = record(tmp_path / "r")
    with replaced("tanh", partial(coarse_tanh, error=error)):
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


@pytest.mark.parametrize("keeps_gradients", [True, False])
def test_a_wrong_backward_is_no_coarse_kernel_also_where_gradients_are_not_recorded(
    keeps_gradients: bool, tmp_path: Path
) -> None:
    reference = record(tmp_path / "r", keeps_gradients)
    with replaced("tanh_backward", lambda gradient, y: gradient * (1 - y)):
        candidate = record(tmp_path / "c", keeps_gradients)
    verdict = tensorprobe.compare(reference, candidate).verdict
    assert verdict.kind == "source" and "tanh.0.backward" in verdict.headline, verdict.headline
