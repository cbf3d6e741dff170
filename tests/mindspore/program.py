"""A user's program: a model, a step of training, and the dump that it leaves in `./dump`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

from tensorprobe.mindspore import PrecisionDebugger
from tests.capture.mindspore.dump import DumpOnDisk, only_step

DUMP = Path("dump")


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 3, pad_mode="valid", has_bias=True)
        self.fc = nn.Dense(8, 3)

    def construct(self, x: Tensor) -> Tensor:
        return self.fc(ops.relu(self.conv1(x)).flatten(start_dim=1))


def make_net() -> tuple[Net, Tensor]:
    mindspore.set_seed(0)
    return Net(), tensor(np.random.default_rng(0).normal(size=(2, 1, 4, 4)))


def tensor(numbers: Any, dtype: Any = mindspore.float32) -> Tensor:
    return Tensor(np.asarray(numbers, dtype=np.float64), dtype)


def train_step(model: nn.Cell, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The loss, and the gradients of the parameters."""
    result: tuple[Tensor, tuple[Tensor, ...]] = mindspore.value_and_grad(
        lambda image: model(image).square().sum(), None, model.trainable_params()
    )(x)
    return result


def gradient_of(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """What the function computes backward, for its first input."""
    return mindspore.grad(function)(*inputs)


def make_debugger(**keys: Any) -> PrecisionDebugger:
    """A debugger with these keys of config.json; those that belong into the section of the task are put there."""
    in_section = ("scope", "list", "data_mode", "summary_mode", "tensor_list")
    section = {key: keys.pop(key) for key in in_section if key in keys}
    task = keys.get("task", "statistics")
    Path("config.json").write_text(json.dumps({"dump_path": str(DUMP), **keys, task: section}))
    return PrecisionDebugger("config.json")


def record_step(**keys: Any) -> DumpOnDisk:
    """One recorded step of training."""
    debugger = make_debugger(**keys)
    model, x = make_net()
    debugger.start(model)
    train_step(model, x)
    debugger.stop()
    debugger.step()
    return dump_of(0)


def dump_of(step: int = 0) -> DumpOnDisk:
    return only_step(DUMP, step)


def files_in(folder: Path) -> list[str]:
    """What is in a folder, but for the lock of a debugger that has not ended."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def is_forward(name: str) -> bool:
    return "forward" in name.split(".")
