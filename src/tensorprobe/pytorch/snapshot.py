"""`save(save_dir, name, data)`, `save_grad(save_dir, name, data)` and `step()`: tensors as .npy files, for torch
tensors.

{save_dir}/step{N}/rank{R}/x_float32_0.npy        z_grad_float32_0.npy
"""

from __future__ import annotations

import os
from typing import Any

import torch

from tensorprobe.capture.snapshot import Snapshots, check_arguments
from tensorprobe.capture.torch.framework import current_rank
from tensorprobe.capture.torch.snapshot import array_of, watch_snapshot_gradient
from tensorprobe.errors import UsageError

_snapshots = Snapshots(torch.Tensor, array_of, current_rank)


def save(save_dir: str | os.PathLike[str], name: str, data: Any) -> None:
    """Save a tensor, or every tensor in a nesting of dict, list and tuple, as it is now."""
    check_arguments("save", save_dir, name)
    _snapshots.save(save_dir, name, data)


def save_grad(save_dir: str | os.PathLike[str], name: str, data: torch.Tensor) -> torch.Tensor:
    """Save the gradient of `data` when it comes. Returns `data`, to be passed on."""
    check_arguments("save_grad", save_dir, name)
    if not isinstance(data, torch.Tensor):
        raise UsageError(f"save_grad(save_dir, name, data): data is a torch.Tensor, not {type(data).__name__}")
    watch_snapshot_gradient(_snapshots, save_dir, name, data)
    return data


def step() -> None:
    """What is saved from now on goes into the next step's folder."""
    _snapshots.step()
