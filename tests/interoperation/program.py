"""One training step of a small network, recorded by tensorprobe or by msprobe: the same program for both.

    python program.py TOOL DUMP_FOLDER CASE ...      CASE is LEVEL-TASK or LEVEL-TASK-planted

Each case is recorded by a forked process of its own, into DUMP_FOLDER/CASE, because msprobe knows one debugger per
process and takes seconds to import. Runs outside pytest, in whichever environment the tool is installed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Config = dict[str, Any]

TASKS: dict[str, Config] = {
    "statistics": {"task": "statistics", "statistics": {"summary_mode": "statistics"}},
    "md5": {"task": "statistics", "statistics": {"summary_mode": "md5"}},
    "tensor": {"task": "tensor", "tensor": {}},
    "structure": {"task": "structure"},
}


class Head(nn.Module):
    """Takes keyword arguments and returns a nesting."""

    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4))
        self.approximate = approximate

    def forward(self, x: torch.Tensor, *, scale: float, mask: torch.Tensor) -> dict[str, Any]:
        y = F.linear(x, self.weight)
        y = F.gelu(y, approximate=self.approximate)
        y = y * scale
        return {"logits": y.masked_fill(mask, 0.0), "pair": (y.sum(), None)}


class Net(nn.Module):
    """A module that is called twice, changes in place, dropout that does nothing."""

    def __init__(self, approximate: str, is_in_place: bool) -> None:
        super().__init__()
        self.is_in_place = is_in_place
        self.shared = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=is_in_place)
        self.dropout = nn.Dropout(0.5)
        self.head = Head(approximate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.shared(x))
        x = torch.sin(self.shared(x))
        x = x.add_(1.0) if self.is_in_place else x.add(1.0)
        x = self.dropout(x)
        mask = torch.tensor([[True, False, False]])
        return self.head(x, scale=2.0, mask=mask)["logits"]


def record(debugger: Any, level: str, task: str, is_planted: bool) -> None:
    """One forward and backward. The planted difference is in the computation of gelu, whose input is the same."""
    torch.manual_seed(0)
    # msprobe computes checksums a little later, of memory that may have been changed by then.
    net = Net("tanh" if is_planted else "none", is_in_place=task != "md5").eval()
    debugger.start(net)
    y = net(torch.arange(8.0).view(2, 4) / 8)
    loss = F.cross_entropy(y, torch.tensor([1, 2]))
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(loss.detach().clone())
    if level == "debug":
        debugger.save({"logits": [y, 1.5], "word": "text"}, "nested")
        debugger.save(y, "y")
    loss.backward()
    debugger.stop()
    debugger.step()


def record_case(tool: ModuleType, folder: Path, case: str) -> None:
    """Record one case into a folder of its name."""
    level, task, *rest = case.split("-")
    config = {"dump_path": str(folder / case), "level": level, "rank": [], "step": [], **TASKS[task]}
    path = folder / f"{case}.{os.getpid()}.json"
    path.write_text(json.dumps(config))
    try:
        record(tool.PrecisionDebugger(str(path)), level, task, is_planted=rest == ["planted"])
    finally:
        path.unlink()


def record_in_child(tool: ModuleType, folder: Path, case: str) -> None:
    """Record one case in a forked process; its exit handlers write what is left."""
    if os.fork() == 0:
        record_case(tool, folder, case)
        sys.exit(0)
    _, status = os.wait()
    if status != 0:
        sys.exit(f"{case}: the process that recorded it ended with {os.waitstatus_to_exitcode(status)}")


def main() -> None:
    """The command line."""
    name, folder, *cases = sys.argv[1:]
    if name == "msprobe":
        import msprobe.pytorch as tool  # type: ignore[import-not-found]
    else:
        import tensorprobe.pytorch as tool
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        record_case(tool, Path(folder), *cases)
        torch.distributed.destroy_process_group()
        return
    for case in cases:
        record_in_child(tool, Path(folder), case)


if __name__ == "__main__":
    main()
