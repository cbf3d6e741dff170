"""`msprobe.mindspore`: `tensorprobe.mindspore` under msprobe's name."""

try:
    from tensorprobe.mindspore import PrecisionDebugger, save, save_grad, seed_all, step
except ModuleNotFoundError as error:
    if error.name != "mindspore":
        raise
    raise ModuleNotFoundError(
        "msprobe.mindspore needs mindspore, which is not installed: install it, or import msprobe.pytorch "
        "in a program for PyTorch.",
        name="mindspore",
    ) from None

__all__ = ["PrecisionDebugger", "save", "save_grad", "seed_all", "step"]
