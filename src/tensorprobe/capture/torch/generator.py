"""The state of a random generator before a call that draws from it, as a short text. Reads only; waits for no device.

Two runs whose random calls began from the same state must draw the same numbers; where the states differ, the reason
lies before the call: another seed, or another number of draws.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch

DROPOUTS = frozenset({"dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "feature_dropout"})


_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


def is_drawing(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Does this call of a function that may draw random numbers draw any? Layers that have a dropout inside need not
    have it on."""
    if op in _RECURRENT:
        is_packed = len(args) > 3 and isinstance(args[3], (tuple, list))
        dropout, training = (args[6:8] if is_packed else args[5:7]) if len(args) > 7 else (1.0, True)
    elif op == "multi_head_attention_forward":
        dropout = args[10] if len(args) > 10 else kwargs.get("dropout_p", 0.0)
        training = args[13] if len(args) > 13 else kwargs.get("training", True)
    else:
        return True
    return bool(dropout and training)


def describe_generator(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The generator that this call draws from: its own, or its device's; None where that cannot be read."""
    generator = find_generator(args, kwargs)
    return _describe(generator) if generator is not None else None


def find_generator(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator | None:
    generator = kwargs.get("generator")
    if isinstance(generator, torch.Generator):
        return generator
    device = _device_of(args, kwargs)
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "cuda" and torch.cuda.is_initialized():
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    return None


def draw_again(generator: torch.Generator, state: torch.Tensor, draw: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What a call drew that began from this state. The generator is left as it is now."""
    now = generator.get_state()
    try:
        generator.set_state(state)
        return draw()
    finally:
        generator.set_state(now)


def draw_mask(
    generator: torch.Generator, state: torch.Tensor, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor | None:
    """Which elements a dropout that has just run has kept. Its result does not say it where its input was zero; None
    where it kept all."""
    tensor, p, is_on = _read_dropout(*args, **kwargs)
    if not is_on or not p or not isinstance(tensor, torch.Tensor):
        return None
    drop = getattr(torch.nn.functional, op.rstrip("_"))
    ones = torch.ones_like(tensor.detach())
    return draw_again(generator, state, lambda: drop(ones, p, True)) != 0


def _read_dropout(
    input: Any = None,  # noqa: A002  the word of torch
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> tuple[Any, float, bool]:
    return input, p, training


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
