"""`msprobe.mindspore`: `tensorprobe.mindspore` under msprobe's name."""

from __future__ import annotations

from tensorprobe.capture.seed import SeedHandle

try:
    from tensorprobe import mindspore as face
    from tensorprobe.mindspore import PrecisionDebugger, save, save_grad, step
except ModuleNotFoundError as error:
    if error.name != "mindspore":
        raise
    raise ModuleNotFoundError(
        "msprobe.mindspore needs mindspore, which is not installed: install it, or import msprobe.pytorch "
        "in a program for PyTorch.",
        name="mindspore",
    ) from None

__all__ = ["PrecisionDebugger", "save", "save_grad", "seed_all", "step"]


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = True) -> SeedHandle:
    """`tensorprobe.mindspore.seed_all` with msprobe's default: dropout is turned off unless `rm_dropout=False`."""
    return face.seed_all(seed, mode, rm_dropout)
