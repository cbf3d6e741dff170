"""The face for PyTorch, with msprobe's names."""

from tensorprobe.capture.torch.seed import seed_all
from tensorprobe.pytorch.debugger import PrecisionDebugger
from tensorprobe.pytorch.snapshot import save, save_grad, step

__all__ = ["PrecisionDebugger", "save", "save_grad", "seed_all", "step"]
