"""What the benchmarks of capture run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Program:
    """One training step, in its two halves."""

    model: torch.nn.Module
    forward_backward: Callable[[], torch.Tensor]
    update: Callable[[], None]


def make_language_program(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> Program:
    """A model that tells the next token, with one batch."""

    def forward_backward() -> torch.Tensor:
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        return loss

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return Program(model, forward_backward, update)
