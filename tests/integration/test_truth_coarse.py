"""A run in half precision against one in float32, whose weights lie otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tensorprobe

WIDTH = 12


class Convolving(nn.Module):
    """`is_port`: written as a product, its weight with all axes in another order."""

    def __init__(self, is_port: bool, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        weight = torch.randn(WIDTH, WIDTH, 3) / 6
        weight[:, ::4] *= 1e-5  # subnormal numbers of float16
        moved = weight.permute(2, 1, 0).reshape(3 * WIDTH, WIDTH)
        self.weight = nn.Parameter((moved if is_port else weight).contiguous())
        self.is_port, self.factor = is_port, factor

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_port:
            return F.conv1d(F.pad(x, (2, 0)), self.weight).mT.square().mean()
        long = F.pad(x, (2, 0)).mT
        taps = torch.cat([long[:, at : at + x.shape[-1]] for at in range(3)], -1)
        return ((taps * self.factor) @ self.weight).square().mean()


def record(folder: Path, model: nn.Module, x: Tensor) -> Path:
    with tensorprobe.capture(model, folder, level="L1", task="tensor"):
        model(x).backward()
    return folder


@pytest.mark.parametrize("factor", [1.0, 1.02])
def test_weights_that_are_turned_and_rounded_to_half_precision_are_the_same_weights(
    factor: float, tmp_path: Path
) -> None:
    x = torch.randn(2, WIDTH, 9, generator=torch.Generator().manual_seed(1)).half()
    models: dict[str, Any] = {"r": Convolving(False, 1.0), "c": Convolving(True, factor).half()}
    paths = [record(tmp_path / "r", models["r"], x.float()), record(tmp_path / "c", models["c"], x)]
    verdict = tensorprobe.compare(*paths).verdict
    assert (verdict.kind == "agree") is (factor == 1.0), verdict


class Wrong(torch.optim.Adagrad):
    """Begins with another number."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **{**named, "initial_accumulator_value": 0.2})


@pytest.mark.parametrize("is_wrong", [False, True])
def test_what_an_optimizer_begins_with_may_be_rounded_too(is_wrong: bool, tmp_path: Path) -> None:
    """0.1 is another number in float16, also where it is only one."""
    x = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1)).half()
    for name, dtype in (("r", torch.float32), ("c", torch.float16)):
        torch.manual_seed(0)
        model = nn.Linear(WIDTH, 1).half().to(dtype)
        kind = Wrong if is_wrong and name == "c" else torch.optim.Adagrad
        optimizer = kind(model.parameters(), lr=0.1, initial_accumulator_value=0.1, foreach=False)
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(x.to(dtype)).square().mean().backward()
            optimizer.step()
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    assert (verdict.kind == "agree") is not is_wrong, verdict


def train_with_turned_weight(path: Path, dtype: torch.dtype, *, is_turned: bool, is_stale: bool = False) -> Path:
    """Half of the gradient cancels, so that what is recorded of it is rounding, of which Adam makes whole steps."""
    torch.manual_seed(0)
    layer, rows = nn.Linear(6, 5, bias=False), torch.randn(3, 6)
    rows[2, :3] = -rows[0, :3] - rows[1, :3]
    layer, rows, goal = layer.to(dtype), rows.to(dtype), torch.linspace(1, 2, 5).to(dtype)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
    layer.weight.grad = torch.full_like(layer.weight, 0.1) if is_stale else None
    with tensorprobe.capture(layer, str(path), level="L1", task="tensor"):
        answer = rows @ layer.weight.T if is_turned else F.linear(rows, layer.weight)
        (answer * goal).sum().backward()
        optimizer.step()
    return path


@pytest.mark.parametrize("is_turned", [True, False], ids=["weight.T", "linear"])
def test_the_update_of_a_weight_that_is_only_taken_turned_is_that_of_its_true_gradient(
    is_turned: bool, tmp_path: Path
) -> None:
    paths = (
        train_with_turned_weight(tmp_path / str(dtype), dtype, is_turned=is_turned)
        for dtype in (torch.float32, torch.bfloat16)
    )
    verdict = tensorprobe.compare(*paths, processes=1).verdict
    assert verdict.kind == "agree", verdict


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_gradient_that_was_not_cleared_is_named_also_of_a_weight_that_is_only_taken_turned(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    paths = (
        train_with_turned_weight(tmp_path / str(is_stale), dtype, is_turned=True, is_stale=is_stale)
        for is_stale in (False, True)
    )
    verdict = tensorprobe.compare(*paths, processes=1).verdict
    assert verdict.kind == "entered" and "cleared too late" in verdict.headline, verdict
