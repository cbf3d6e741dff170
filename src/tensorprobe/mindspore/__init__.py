"""The face for MindSpore, with msprobe's names."""

from tensorprobe.capture.mindspore.seed import seed_all
from tensorprobe.mindspore.debugger import PrecisionDebugger
from tensorprobe.mindspore.snapshot import save, save_grad, step

__all__ = ["PrecisionDebugger", "save", "save_grad", "seed_all", "step"]
