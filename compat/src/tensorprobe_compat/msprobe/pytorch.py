"""`msprobe.pytorch`: `tensorprobe.pytorch` under msprobe's name."""

try:
    from tensorprobe.pytorch import PrecisionDebugger, save, save_grad, seed_all, step
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "msprobe.pytorch needs torch, which is not installed: install it, or import msprobe.mindspore "
        "in a program for MindSpore.",
        name="torch",
    ) from None

__all__ = ["PrecisionDebugger", "save", "save_grad", "seed_all", "step"]
