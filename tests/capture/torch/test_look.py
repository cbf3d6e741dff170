"""Compiled code looks at tensors as its twin in Python does: both record the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensorprobe.capture.torch import look
from tensorprobe.capture.torch.layout import layout_of
from tensorprobe.capture.torch.value import ValueTable
from tensorprobe.capture.torch.verification import VARIABLE
from tests.capture.torch.dump import only_step
from tests.capture.torch.training import open_session

pytestmark = pytest.mark.skipif(look.compiled is None, reason="the compiled part was not built")


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(inplace=True), nn.Linear(5, 3, bias=False))


def train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        torch.nn.functional.cross_entropy(model(torch.randn(4, 6)), torch.tensor([0, 1, 2, 0])).backward()
        optimizer.step()


def view_and_write(model: nn.Module) -> None:
    x = torch.randn(4, 6, requires_grad=True)
    y = torch.mul(x, 2)
    part, turned = y[1:3], y.T
    torch.add(turned.contiguous(), torch.add(part, 1).sum())
    part.mul_(2)
    torch.sub(y, y.detach()).sum().backward()
    shared = torch.from_numpy(torch.ones(3).numpy())
    torch.neg(shared)
    shared.numpy()[0] = 5
    torch.neg(shared)


def look_at_strange_ones(model: nn.Module) -> None:
    z = torch.randn(3, 2, dtype=torch.complex64)
    torch.add(z.conj(), z.conj().imag)
    torch.add(torch.randn(3, 3), torch.randn(3, 3).to_sparse())
    torch.dequantize(torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8))
    torch.nn.functional.relu(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
    torch.relu(torch.ones(0, 3))
    torch.relu(torch.full((3,), float("nan")))
    torch.relu(torch.ones(1).expand(4, 5))
    torch.abs(torch.empty(3, device="meta"))
    with torch.inference_mode():
        torch.exp(torch.ones(2))
    torch.func.vmap(torch.exp)(torch.randn(3, 2))
    torch.func.grad(lambda a: torch.exp(a).sum())(torch.ones(3))
    torch.cat([torch.ones(2), torch.ones(3)], dim=0)
    torch.nn.functional.pad(torch.ones(2, 2), (1, 1), mode="constant", value=None)
    torch.clamp(torch.ones(2), min=0.5, max=None)


PROGRAMS: list[Callable[[nn.Module], None]] = [train, view_and_write, look_at_strange_ones]


def record(folder: Path, level: str, program: Callable[[nn.Module], None], **options: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = make_model()
    session = open_session(folder, level=level, **options)
    session.start(model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program(model)
    finally:
        session.close()
    return dict(only_step(folder).records)


@pytest.mark.parametrize("options", [{}, {"summary_mode": "hash"}], ids=["statistics", "hash"])
@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_both_record_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    level: str,
    program: Callable[[nn.Module], None],
    options: dict[str, Any],
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    compiled = record(tmp_path / "compiled", level, program, **options)
    monkeypatch.setattr(look, "compiled", None)
    monkeypatch.setattr(look, "find_value", ValueTable.find)
    monkeypatch.setattr(look, "make_leaf", look.make_leaf_plainly)
    plain = record(tmp_path / "plain", level, program, **options)
    assert len(plain) > 5
    assert repr(compiled) == repr(plain)  # NaN is not equal to itself


def test_what_is_wrong_in_a_call_is_refused() -> None:
    compiled = look.compiled
    for function in (compiled.find, compiled.read, compiled.make_leaf, compiled.describe_flat, compiled.prepare):
        with pytest.raises(TypeError, match="takes"):
            function(1)


def test_a_layout_is_there_once_and_goes_when_nobody_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorprobe.capture.torch import layout as layout_module

    monkeypatch.setattr(layout_module, "_sweep_at", 0)
    held = layout_of(torch.ones(2, 3), 0)
    assert layout_of(torch.zeros(2, 3), 0) is held
    layout_of(torch.ones(7, 5), 3)
    monkeypatch.setattr(layout_module, "_sweep_at", 0)
    layout_of(torch.ones(1, 9), 0)
    kept = list(layout_module.known_layouts.values())
    assert any(layout is held for layout in kept)
    assert not any(layout[2] == (7, 5) for layout in kept)
    assert layout_of(torch.zeros(2, 3), 0) is held
