"""A small training step, recorded in a process of its own or in this one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tensorprobe


def record_step(
    dump_path: str | Path, steps: int = 1, after_step: Callable[[int], None] | None = None, **options: Any
) -> list[float]:
    """The losses."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with tensorprobe.capture(None, dump_path, level="L1", **{"task": "tensor", **options}) as run:
        for step in range(steps):
            loss = model(torch.randn(3, 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            run.step()
            if after_step is not None:
                after_step(step)
    return losses
