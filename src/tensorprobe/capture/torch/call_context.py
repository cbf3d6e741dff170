"""What a call runs under, besides its arguments: are gradients followed, which precision does autocast choose, and
which has what is made without one?

On the hot path: where nothing is out of the ordinary nothing is made.

Autocast keeps the weights that it has cast until its outermost region ends, and gradients add up in the kept one:
which calls share it is told by the number of their region.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.patch import replace

_DEVICES = ("cpu", "cuda", "npu", "xpu", "mps")
_NOTHING: Mapping[str, Any] = {}
_is_any_autocast_enabled = getattr(torch._C, "_is_any_autocast_enabled", None) or torch.is_autocast_enabled


class _Regions:
    """How many regions of autocast have ended."""

    count = 0


def count_regions() -> Undo:
    """Notice, for the time of a window, when autocast lets go of what it has cast."""
    original = torch.clear_autocast_cache

    def clear_autocast_cache() -> None:
        _Regions.count += 1
        original()

    return replace(torch, "clear_autocast_cache", clear_autocast_cache)


def describe_context() -> Mapping[str, Any]:
    """Fields for the record of a call that is made now."""
    is_cast, default = _is_any_autocast_enabled(), torch.get_default_dtype()
    if torch.is_grad_enabled() and not is_cast and default is torch.float32:
        return _NOTHING
    context: dict[str, Any] = {} if torch.is_grad_enabled() else {"grad_enabled": False}
    if default is not torch.float32:
        context["default_dtype"] = str(default).removeprefix("torch.")
    if is_cast:
        context["autocast"] = _describe_autocast()
        context["autocast_region"] = _Regions.count
        if not torch.is_autocast_cache_enabled():
            context["autocast_cache"] = False
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
