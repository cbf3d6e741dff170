"""The face for MindSpore, with msprobe's names."""

from tensorprobe.errors import require_framework

require_framework(
    "mindspore",
    "tensorprobe.mindspore",
    "pip install mindspore; https://www.mindspore.cn/install has the command for your machine",
)

from tensorprobe.capture.mindspore.seed import seed_all  # noqa: E402
from tensorprobe.mindspore.debugger import PrecisionDebugger  # noqa: E402
from tensorprobe.mindspore.snapshot import save, save_grad, step  # noqa: E402

del require_framework
__all__ = ["PrecisionDebugger", "save", "save_grad", "seed_all", "step"]
