"""The program behind the golden files: `python golden_program.py TASK DUMP_PATH`. Numbers are set by hand and exact.

Its lines stand in stack.json: whoever moves them writes the golden files anew.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from tensorprobe.pytorch import PrecisionDebugger


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.register_buffer("scale", torch.tensor([1.0, 0.0]))
        with torch.no_grad():
            self.fc.weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
            self.fc.bias.copy_(torch.tensor([0.0, -4.0]))

    def forward(self, x: torch.Tensor, *, pair: tuple[torch.Tensor, int]) -> torch.Tensor:
        y = F.relu(self.fc(x))
        return torch.add(y * self.scale, pair[0], alpha=pair[1])


def main(task: str, dump_path: str) -> None:
    debugger = PrecisionDebugger(dump_path=dump_path, task=task, level="mix")
    model = Tiny()
    debugger.start(model)
    out = model(torch.tensor([[1.0, 0.0]]), pair=(torch.tensor([0.0, float("nan")], dtype=torch.float64), 2))
    debugger.save({"out": [out, 1.5], "text": "a"}, "point")
    keep_parts(debugger, Path(dump_path))
    out[0, :1].sum().backward()
    debugger.stop()
    debugger.step()


def keep_parts(debugger: PrecisionDebugger, dump_path: Path) -> None:
    """What a SIGKILL would leave here, just after a flush."""
    debugger._session._sink.flush()
    for part in (dump_path / "step0" / "rank").glob("*.part"):
        shutil.copy(part, dump_path / part.name)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
