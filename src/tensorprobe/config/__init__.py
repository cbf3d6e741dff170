"""config.json and the arguments that win over it, as one frozen object that is validated once."""

from tensorprobe.config.capture_config import CaptureConfig
from tensorprobe.config.load import load_config

__all__ = ["CaptureConfig", "load_config"]
