"""tensorprobe records what every operation of a training run computed, and says where two runs first differ.

Importing it imports no framework: `tensorprobe.pytorch` is the face for PyTorch.
"""

from tensorprobe import migrator, widget
from tensorprobe._version import __version__
from tensorprobe.capture.context import capture  # binds the function over the package of the same name
from tensorprobe.check import assert_runs_agree, check  # and so does this
from tensorprobe.compare import compare  # and this
from tensorprobe.errors import ConfigError, DumpError, TensorprobeError, UsageError
from tensorprobe.replay import truth
from tensorprobe.replay.meaning.registry import meaning
from tensorprobe.saving import save, save_grad

__all__ = [
    "ConfigError",
    "DumpError",
    "TensorprobeError",
    "UsageError",
    "__version__",
    "assert_runs_agree",
    "capture",
    "check",
    "compare",
    "meaning",
    "migrator",
    "save",
    "save_grad",
    "truth",
    "widget",
]
