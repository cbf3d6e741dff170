"""A user's program: a model, a step of training, and the dump that it leaves in `./dump`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tensorprobe.pytorch import PrecisionDebugger
from tests.capture.torch.dump import DumpOnDisk, only_step

DUMP = Path("dump")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 3)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(F.relu(self.conv1(x)).flatten(1))


def make_net() -> tuple[Net, torch.Tensor]:
    torch.manual_seed(0)
    return Net(), torch.randn(2, 1, 4, 4)


def train_step(model: nn.Module, x: torch.Tensor) -> None:
    model(x).square().sum().backward()


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
