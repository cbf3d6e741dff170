"""The state of a random generator before a call that draws from it, as a short text. Reads only; waits for no device.

Two runs whose random calls began from the same state must draw the same numbers; where the states differ, the reason
lies before the call: another seed, or another number of draws.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch


def describe_generator(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The generator that this call draws from: its own, or its device's; None where that cannot be read."""
    generator = kwargs.get("generator")
    if isinstance(generator, torch.Generator):
        return _describe(generator)
    device = _device_of(args, kwargs)
    if device.type == "cpu":
        return _describe(torch.default_generator)
    if device.type == "cuda" and torch.cuda.is_initialized():
        index = torch.cuda.current_device() if device.index is None else device.index
        return _describe(torch.cuda.default_generators[index])
    return None


def _device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            return value.device
    given = kwargs.get("device")
    return torch.get_default_device() if given is None else torch.device(given)


def _describe(generator: torch.Generator) -> str | None:
    if generator.device.type == "cpu":
        return f"{zlib.crc32(generator.get_state().numpy()):08x}"
    if generator.device.type == "cuda":
        # Seed and offset lie on the host; the whole state would be a copy.
        return f"{generator.initial_seed():x}:{generator.get_offset():x}"
    return None
