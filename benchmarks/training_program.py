"""What the benchmarks of capture run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Program:
    """One training step, in its two halves."""

    model: torch.nn.Module
    forward_backward: Callable[[], torch.Tensor]
    update: Callable[[], None]
