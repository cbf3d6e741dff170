"""`tensorboard`: norms of activations and gradients per module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from tensorprobe.errors import ConfigError
from tensorprobe.pytorch import PrecisionDebugger
from tests.integration.script import run_script

WITHOUT_TENSORBOARD = """
import sys

for name in ("tensorboard", "tensorboardX"):
    sys.modules[name] = None  # an import of it fails, as it does where it is not installed

from tensorprobe.pytorch import PrecisionDebugger

PrecisionDebugger(dump_path="dump", level="mix", tensorboard="board")
"""


def train(debugger: PrecisionDebugger | None, steps: int = 2) -> list[torch.Tensor]:
    """The loss and all gradients of every step, and the random numbers that come next."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for _ in range(steps):
        if debugger is not None:
            debugger.start(model)
        loss = model(torch.randn(3, 4)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        optimizer.step()
        seen += [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]
    return [*seen, *model.parameters(), torch.rand(1)]


def record(steps: int = 2) -> list[torch.Tensor]:
    seen = train(PrecisionDebugger(dump_path="dump", level="mix", tensorboard="board"), steps)
    PrecisionDebugger.reset()
    return seen


def read_board(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and numbers, as TensorBoard itself reads them."""
    events: Any = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    return {
        tag: [(event.step, event.tensor_proto.float_val[0]) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }


def norm_of(tensors: list[torch.Tensor]) -> float:
    return torch.cat([tensor.flatten() for tensor in tensors]).norm().item()


def test_tensorboard_reads_the_norms_of_activations_and_gradients_of_each_step() -> None:
    seen = record()
    board = read_board(Path("board/rank"))
    assert sorted(board) == [
        "activation_norm/0.Linear",
        "activation_norm/1.Dropout",
        "activation_norm/2.Linear",
        "activation_norm/Sequential",
        "gradient_norm/0.Linear",
        "gradient_norm/2.Linear",
    ]
    for step, (loss, *gradients) in enumerate((seen[:5], seen[5:10])):
        expected = {
            "activation_norm/Sequential": loss.sqrt().item(),  # the loss is the sum of the squares
            "activation_norm/2.Linear": loss.sqrt().item(),
            "gradient_norm/0.Linear": norm_of(gradients[:2]),
            "gradient_norm/2.Linear": norm_of(gradients[2:]),
        }
        for tag, number in expected.items():
            assert board[tag][step] == (step, pytest.approx(number, rel=1e-5)), tag


def test_training_is_bit_identical_while_tensorboard_is_written() -> None:
    assert all(torch.equal(with_board, without) for with_board, without in zip(record(4), train(None, 4), strict=True))
    assert read_board(Path("board/rank"))


def test_without_a_package_for_it_the_error_says_what_to_install(tmp_path: Path) -> None:
    result = run_script(tmp_path, WITHOUT_TENSORBOARD, code=1)
    assert result.stderr.splitlines()[-1] == (
        'tensorprobe.errors.ConfigError: the key "tensorboard" needs the package tensorboard or tensorboardX, and '
        "none of them can be imported; run: pip install tensorboard"
    )


def test_a_level_without_modules_is_refused() -> None:
    with pytest.raises(ConfigError, match='"tensorboard" writes the norms of modules, and level "L1" records none'):
        PrecisionDebugger(dump_path="dump", level="L1", tensorboard="board")
