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
    truth = truth.detach()
    wide = recorded.detach().to(truth.dtype)
    difference = wide - truth
    error, norm = float(difference.norm()), float(truth.norm())
    overflow = 0
    if not (error < _NO_NUMBER and norm < _NO_NUMBER):  # the usual case needs no look at each element
        is_finite, has_truth = torch.isfinite(wide), torch.isfinite(truth)
        overflow = int((~is_finite & has_truth).sum())
        is_number = is_finite & has_truth & (truth.abs() < _NO_NUMBER)
        difference = torch.where(is_number, difference, 0)
        error, norm = float(difference.norm()), float(torch.where(is_number, truth, 0).norm())
    place = int(difference.abs().argmax()) if error else 0
    return Error(
        norm=error,
        true_norm=norm,
        worst=_number(difference.abs(), place),
        worst_index=place_index(place, truth),
        recorded_worst=_number(recorded, place),
        true_worst=_number(truth, place),
        overflow_count=overflow,
        underflow_count=count_lost(wide, truth, torch.finfo(recorded.dtype)),
    )


def count_lost(wide: torch.Tensor, truth: torch.Tensor, limits: torch.finfo) -> int:
    """Of elements that are zero or subnormal in a dtype, where the truth is a number that is not zero."""
    is_small = wide.abs() < limits.tiny
    if not bool(is_small.any()):
        return 0
    is_lost = is_small & (truth.abs() >= limits.tiny * limits.eps) & torch.isfinite(truth) & (wide != truth)
    return int(is_lost.sum())


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
