"""Arguments that are objects of torch: dtypes, devices, sizes. Made from a fixed table of types."""

from __future__ import annotations

from typing import Any

import torch

from tensorprobe.replay.argument import UnknownArgumentError
from tensorprobe.replay.precision import Precision, torch_dtype

_FORMATS = {
    str(item): item
    for item in (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
}
PYTHON_TYPES = {"bool": torch.bool, "int": torch.int64, "float": torch.float64, "complex": torch.complex128}
"""What torch takes for a dtype: `torch.ones(2, dtype=bool)`."""


def make_object(kind: str, value: Any, precision: Precision, device: torch.device) -> Any:
    """The object that was given, in the precision and on the device of the replay."""
    if kind == "torch.dtype" and isinstance(value, str):
        return precision.dtype(torch_dtype(value.removeprefix("torch.")))
    if kind == "type" and value in PYTHON_TYPES:
        return precision.dtype(PYTHON_TYPES[value])
    if kind == "mindspore.dtype" and isinstance(value, str):
        return precision.dtype(torch_dtype(value.lower()))
    if kind == "torch.device":
        return device
    if kind == "torch.Size" and isinstance(value, list) and all(isinstance(item, int) for item in value):
        return torch.Size(value)
    if kind == "torch.memory_format" and value in _FORMATS:
        return _FORMATS[value]
    if kind == "torch.layout" and value == "torch.strided":
        return torch.strided
    raise UnknownArgumentError(f"an argument of type {kind[:60]}")
