"""What msprobe's own dumps do not hold, recorded by tensorprobe: python awkward_program.py DUMP_PATH

Calls that fail, modules that fail, NaN and infinity, empty, meta, complex and bfloat16 tensors, custom functions and
operators, gradients of keyword arguments, buffers. (No sparse tensor: a file of one ends msprobe's compare.)
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tensorprobe.pytorch import PrecisionDebugger


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.broken = Broken()
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        with contextlib.suppress(ValueError):
            self.broken(x)
        with contextlib.suppress(RuntimeError):
            torch.matmul(x, torch.ones(7, 7))
        x, (hidden, _) = self.lstm(x[:, None])
        x = Double.apply(x[:, -1] + hidden[-1])
        return F.layer_norm(x, (4,), weight=self.norm.weight)


def compute_awkward_values() -> None:
    torch.log(torch.tensor([-1.0, 0.0, 1.0]))
    torch.log(torch.full((2,), -1.0))
    torch.zeros(0, 3).sum(0)
    torch.complex(torch.ones(2), torch.ones(2)).abs()
    torch.topk(torch.arange(4), 2)
    torch.ops.aten.add(torch.ones(2), 1)
    torch.empty(3)
    torch.ones(2, dtype=torch.float64).to(torch.bfloat16)
    torch.zeros(2, device="meta").add(1)


def main() -> None:
    """One step."""
    torch.manual_seed(0)
    net = Net()
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level="mix", task="tensor")
    debugger.start(net)
    net(torch.randn(5, 4)).square().sum().backward()
    compute_awkward_values()
    debugger.stop()
    debugger.step()


if __name__ == "__main__":
    main()
