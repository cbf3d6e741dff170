"""The face for MindSpore, with msprobe's names."""

from tensorprobe.mindspore.debugger import PrecisionDebugger

__all__ = ["PrecisionDebugger"]
