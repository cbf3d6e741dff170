"""config.json and the arguments that win over it, as one frozen object that is validated once."""

from tensorprobe.config.api_list import ApiList, load_api_list
from tensorprobe.config.capture_config import CaptureConfig
from tensorprobe.config.load import load_config

__all__ = ["ApiList", "CaptureConfig", "load_api_list", "load_config"]
