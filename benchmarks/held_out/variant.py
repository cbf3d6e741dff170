"""Other ways to run the same model that mean the same: a comparison should say nothing about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Inputs = dict[str, Any]


def keep(model: nn.Module) -> None:
    """As it is."""


@dataclass(frozen=True)
class Variant:
    name: str
    steps: int = 1
    attention: str = ""
    """This implementation of attention in the place of the eager one."""
    experts: str = ""
    """This implementation of a mixture of experts in the place of a loop over them."""
    parts: int = 1
    """Into how many parts the batch is split, whose gradients add up."""
    threads: int = 1
    optimizer: str = ""
    """`foreach` or `fused`."""
    change: Callable[[nn.Module], object] = keep


PLAIN = Variant("")
SDPA = Variant("sdpa", attention="sdpa")
GROUPED = Variant("grouped experts", experts="grouped_mm")
BATCHED = Variant("batched experts", experts="batched_mm")
CHANNELS_LAST = Variant("channels last", change=lambda model: nn.Module.to(model, memory_format=torch.channels_last))
CHECKPOINTING = Variant("checkpointing", change=lambda model: enable_checkpointing(model))
CHUNKS = Variant("longer chunks", change=lambda model: double_chunks(model))
HALVES = Variant("two halves", parts=2)
THREADS = Variant("two threads", threads=2)
FOREACH = Variant("foreach", steps=2, optimizer="foreach")
FUSED = Variant("fused", steps=2, optimizer="fused")
EVERY = (THREADS, FOREACH, FUSED)
VARIANTS = {
    one.name: one for one in (PLAIN, SDPA, GROUPED, BATCHED, CHANNELS_LAST, CHECKPOINTING, CHUNKS, HALVES, *EVERY)
}


def enable_checkpointing(model: nn.Module) -> None:
    (getattr(model, "gradient_checkpointing_enable", None) or model.enable_gradient_checkpointing)()


def double_chunks(model: nn.Module) -> None:
    """Of a state space model that is computed by chunks of the sequence: their length changes no result."""
    for module in model.modules():
        if hasattr(module, "chunk_size"):
            module.chunk_size *= 2


def choose_processors(model: nn.Module, attention: str) -> None:
    """Of a model of diffusers, whose layers of attention take the way to compute it as an object."""
    from diffusers.models import attention_processor

    name = "AttnProcessor2_0" if attention == "sdpa" else "AttnProcessor"
    for module in model.modules():
        if isinstance(module, attention_processor.Attention):
            module.set_processor(getattr(attention_processor, name)())


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
