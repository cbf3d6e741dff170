"""Single points: one variable of a model and its gradient, saved where it is computed, step by step.

python examples/single_point.py
tensorprobe show ./dump_path
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tensorprobe.pytorch import PrecisionDebugger, seed_all

debugger = PrecisionDebugger(dump_path="dump_path", task="tensor", level="debug")


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(in_features=8, out_features=4)
        self.linear_2 = nn.Linear(in_features=4, out_features=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x1 = self.linear_1(x)
        x2 = self.linear_2(x1)
        debugger.save(x2, "x2", save_backward=True)  # x2.0.debug, and x2_grad.0.debug when backward has run
        debugger.save({"hidden": x1, "both": [x1, x2]}, "nested", save_backward=False)  # nested.0.debug.both.1.pt
        return F.relu(x2)


def main() -> None:
    seed_all()
    model = TwoLayers()
    for _ in range(3):
        model(torch.randn(10, 8)).sum().backward()
        debugger.step()  # step0, step1, step2; without it everything is in step0


if __name__ == "__main__":
    main()
