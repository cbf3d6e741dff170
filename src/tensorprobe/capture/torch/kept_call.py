"""`Module.__call__` is replaced for a time only. Who has kept what was there meanwhile (`forward = model.__call__`, as
generate() of transformers does) calls it later, too: it is handed on to what is there then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_HANDED_ON_TO = ("_compiled_call_impl", "_call_impl")
"""All that `Module.__call__` names, in torch 2.4 to 2.13."""
_MARK = "_tensorprobe_is_direct"


def only_hands_on(original: Any) -> bool:
    """Is this torch's own `Module.__call__`?"""
    return getattr(getattr(original, "__code__", None), "co_names", None) == _HANDED_ON_TO


def mark_direct(stand_in: Callable[..., Any], original: Any) -> None:
    """A stand-in that calls torch's own function, and nobody else's, may be handed kept calls: it never calls back."""
    setattr(stand_in, _MARK, only_hands_on(original))


def find_present(kept: Callable[..., Any]) -> Callable[..., Any] | None:
    """What a kept stand-in, whose time is over, hands its calls on to; None if that is nothing of ours."""
    present: Callable[..., Any] = torch.nn.Module.__call__
    if present is kept or torch.compiler.is_compiling() or not getattr(present, _MARK, False):
        return None
    return present
