"""What a call runs under, besides its arguments: are gradients followed, and which precision does autocast choose?

On the hot path: where neither is the case nothing is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

_DEVICES = ("cpu", "cuda", "npu", "xpu", "mps")
_NOTHING: Mapping[str, Any] = {}
_is_any_autocast_enabled = getattr(torch._C, "_is_any_autocast_enabled", None) or torch.is_autocast_enabled


def describe_context() -> Mapping[str, Any]:
    """Fields for the record of a call that is made now."""
    is_cast = _is_any_autocast_enabled()
    if torch.is_grad_enabled():
        return {"autocast": _describe_autocast()} if is_cast else _NOTHING
    context: dict[str, Any] = {"grad_enabled": False}
    if is_cast:
        context["autocast"] = _describe_autocast()
    return context


def _describe_autocast() -> dict[str, str]:
    """The devices on which it is on, and its dtype there."""
    return {
        device: str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        for device in _known_devices()
        if torch.is_autocast_enabled(device)
    }


@cache
def _known_devices() -> tuple[str, ...]:
    """Those that this torch can be asked about."""
    known = []
    for device in _DEVICES:
        try:
            torch.is_autocast_enabled(device)
        except RuntimeError:
            continue
        known.append(device)
    return tuple(known)
