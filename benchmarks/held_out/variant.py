"""Other ways to run the same model that mean the same: a comparison should say nothing about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    name: str
    steps: int = 1
    attention: str = ""
    """This implementation of attention in the place of the eager one."""
    parts: int = 1
    """Into how many parts the batch is split, whose gradients add up."""
    threads: int = 1
    optimizer: str = ""
    """`foreach` or `fused`."""
    change: Callable[[nn.Module], object] = lambda model: None


PLAIN = Variant("")
SDPA = Variant("sdpa", attention="sdpa")
CHANNELS_LAST = Variant("channels last", change=lambda model: model.to(memory_format=torch.channels_last))
CHECKPOINTING = Variant("checkpointing", change=lambda model: model.gradient_checkpointing_enable())
HALVES = Variant("two halves", parts=2)
THREADS = Variant("two threads", threads=2)
FOREACH = Variant("foreach", steps=2, optimizer="foreach")
FUSED = Variant("fused", steps=2, optimizer="fused")
EVERY = (THREADS, FOREACH, FUSED)
VARIANTS = {one.name: one for one in (PLAIN, SDPA, CHANNELS_LAST, CHECKPOINTING, HALVES, *EVERY)}


@contextmanager
def set_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def split_inputs(inputs: Inputs, parts: int) -> list[Inputs]:
    """Along the batch."""
    if parts == 1:
        return [inputs]
    pieces = {
        name: value.chunk(parts) if isinstance(value, torch.Tensor) else [value] * parts
        for name, value in inputs.items()
    }
    return [{name: piece[number] for name, piece in pieces.items()} for number in range(parts)]


def make_optimizer(model: nn.Module, variant: Variant) -> torch.optim.Optimizer:
    settings: dict[str, bool] = {"foreach": False} if not variant.optimizer else {variant.optimizer: True}
    return torch.optim.AdamW(model.parameters(), lr=1e-3, **settings)
