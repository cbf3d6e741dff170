"""`tensorboard`: norms of activations and gradients per module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from tensorprobe.errors import ConfigError
from tensorprobe.pytorch import PrecisionDebugger


class Board:
    """The writer of tensorboardX, as far as it is used."""

    written: ClassVar[list[tuple[str, str, float, int]]] = []

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        Board.written.append((self._folder, tag, value, step))

    def flush(self) -> None: ...

    def close(self) -> None: ...


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)


def train(**options: Any) -> tuple[nn.Linear, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    x = torch.randn(3, 4)
    debugger = PrecisionDebugger(dump_path="dump", level="mix", tensorboard="board", **options)
    for _ in range(2):
        model.zero_grad()
        debugger.start(model)
        model(x).sum().backward()
        debugger.stop()
        debugger.step()
    PrecisionDebugger.reset()
    return model, x


def test_norms_of_activations_and_gradients_are_written_for_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "tensorboard", "tensorboard.summary")
    package: Any = ModuleType("tensorboardX")
    package.SummaryWriter = Board
    monkeypatch.setitem(sys.modules, "tensorboardX", package)
    Board.written = []
    model, x = train()
    assert model.weight.grad is not None and model.bias.grad is not None
    gradient = torch.cat([model.weight.grad.flatten(), model.bias.grad]).norm().item()
    folder = str(Path("board").absolute() / "rank")
    assert [(one[0], one[1], one[3]) for one in Board.written] == [
        (folder, tag, step) for step in (0, 1) for tag in ("activation_norm/Linear", "gradient_norm/Linear")
    ]
    assert [one[2] for one in Board.written[:2]] == pytest.approx([model(x).norm().item(), gradient], rel=1e-5)


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed here")
def test_the_files_are_those_that_tensorboard_reads() -> None:
    train()
    loader: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = loader.EventAccumulator("board/rank", size_guidance={"tensors": 0, "scalars": 0})
    events.Reload()
    tags = events.Tags()
    assert sorted([*tags["scalars"], *tags["tensors"]]) == ["activation_norm/Linear", "gradient_norm/Linear"]


def test_without_a_package_for_it_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "tensorboard", "tensorboard.summary", "tensorboardX")
    with pytest.raises(ConfigError) as caught:
        train()
    assert str(caught.value) == (
        'the key "tensorboard" needs the package tensorboard or tensorboardX, and none of them can be imported; run: '
        "pip install tensorboard"
    )


def test_a_level_without_modules_is_refused() -> None:
    with pytest.raises(ConfigError, match='"tensorboard" writes the norms of modules, and level "L1" records none'):
        PrecisionDebugger(dump_path="dump", level="L1", tensorboard="board")
