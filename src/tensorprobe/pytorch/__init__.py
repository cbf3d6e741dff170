"""The face for PyTorch, with msprobe's names."""

from tensorprobe.errors import require_framework

require_framework(
    "torch",
    "tensorprobe.pytorch",
    "pip install torch; https://pytorch.org/get-started has the command for your machine",
)

from tensorprobe.capture.torch.seed import seed_all  # noqa: E402
from tensorprobe.pytorch.debugger import PrecisionDebugger  # noqa: E402
from tensorprobe.pytorch.snapshot import save, save_grad, step  # noqa: E402

del require_framework
__all__ = ["PrecisionDebugger", "save", "save_grad", "seed_all", "step"]
