"""A program: a model, what it computes in a step, its batches. The same for every model, so that one loop runs all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Batch = dict[str, Any]
"""Tensors of the framework."""


@dataclass
class Program:
    model: Any
    compute_loss: Callable[[Any, Batch], Any]
    batches: list[Batch]
    evaluate: Callable[[Any, Batch], object] | None = None
    """What runs after the backward in the same step, without gradients."""
    tied: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of parameters that are one: `("words.weight", "head.weight")`."""
    last: str = ""
    """The module that makes the result: detached there, nothing would have a gradient, and no program would run."""
    step_seed: int = 0
    """Of the random numbers in the steps: dropout."""
    learning_rate: float = 1e-2
