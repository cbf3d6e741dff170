"""`msprobe.pytorch`: `tensorprobe.pytorch` under msprobe's name."""

from __future__ import annotations

from tensorprobe.capture.seed import SeedHandle

try:
    from tensorprobe import pytorch as face
    from tensorprobe.pytorch import PrecisionDebugger, save, save_grad, step
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "msprobe.pytorch needs torch, which is not installed: install it, or import msprobe.mindspore "
        "in a program for MindSpore.",
        name="torch",
    ) from None

__all__ = ["PrecisionDebugger", "save", "save_grad", "seed_all", "step"]


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = True) -> SeedHandle:
    """`tensorprobe.pytorch.seed_all` with msprobe's default: dropout is turned off unless `rm_dropout=False`."""
    return face.seed_all(seed, mode, rm_dropout)
