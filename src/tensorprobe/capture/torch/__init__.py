"""Capture for PyTorch: with the face `tensorprobe.pytorch`, the only code that imports torch."""

from tensorprobe.capture.context import is_adapter_loaded
from tensorprobe.errors import UsageError

if is_adapter_loaded():
    raise UsageError("torch is MSAdapter's in this program, and runs on MindSpore: use tensorprobe.mindspore")
