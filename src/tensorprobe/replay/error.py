"""How far a recorded tensor is from what it should be, in units of its dtype's rounding.

Infinite elements and those that stand for "masked" are counted apart, and are no part of a distance.
"""

from __future__ import annotations

import numpy as np
import torch

from tensorprobe.replay.result import Error

_NO_NUMBER = 1e30
"""Larger ones stand for "masked": -inf, the smallest number of a dtype."""


def measure(recorded: torch.Tensor, truth: torch.Tensor) -> Error:
    """`recorded` in its own precision against `truth` in float64."""
    wide = recorded.detach().to(truth.dtype)
    truth = truth.detach()
    is_finite = torch.isfinite(wide)
    has_truth = torch.isfinite(truth)
    overflow = int((~is_finite & has_truth).sum())
    is_number = is_finite & has_truth & (truth.abs() < _NO_NUMBER)
    difference = torch.where(is_number, wide - truth, torch.zeros((), dtype=truth.dtype, device=truth.device)).abs()
    norm = float(torch.where(is_number, truth, torch.zeros((), dtype=truth.dtype, device=truth.device)).norm())
    error = float(difference.norm())
    place = int(difference.argmax()) if difference.numel() else 0
    index = place_index(place, truth)
    limits = torch.finfo(recorded.dtype)
    lost = (wide.abs() < limits.tiny) & (truth.abs() >= limits.tiny * limits.eps) & has_truth & (wide != truth)
    return Error(
        norm=error,
        true_norm=norm,
        worst=float(difference.max()) if difference.numel() else 0.0,
        worst_index=index,
        recorded_worst=_number(recorded, place),
        true_worst=_number(truth, place),
        overflow_count=overflow,
        underflow_count=int(lost.sum()),
    )


def place_index(place: int, tensor: torch.Tensor) -> tuple[int, ...]:
    """The index of an element that is the `place`th in memory order."""
    if not tensor.numel():
        return ()
    return tuple(int(part) for part in np.unravel_index(place, tuple(tensor.shape)))


def _number(tensor: torch.Tensor, place: int) -> float:
    if not tensor.numel():
        return 0.0
    found = tensor.detach().reshape(-1)[place].item()
    return abs(found) if isinstance(found, complex) else float(found)
