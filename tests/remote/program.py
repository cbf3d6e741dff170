"""A small training step, recorded in a process of its own or in this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import tensorprobe


def record_step(dump_path: str | Path, steps: int = 1, **options: Any) -> list[float]:
    """The losses."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with tensorprobe.capture(None, dump_path, level="L1", **{"task": "tensor", **options}) as run:
        for _ in range(steps):
            loss = model(torch.randn(3, 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss))
            run.step()
    return losses
