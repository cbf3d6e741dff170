"""The weights of a module of PyTorch, read and written; what they are called elsewhere is not known here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tensorprobe.errors import UsageError
from tensorprobe.model.dtype import short_dtype
from tensorprobe.model.weight import Weight
from tensorprobe.store.disk import open_whole
from tensorprobe.store.weight_file import StoredWeight

Array = np.ndarray[Any, Any]


def is_model(value: Any) -> bool:
    return isinstance(value, torch.nn.Module)


def read_model(model: Any) -> list[StoredWeight]:
    """All entries of its state_dict, with the classes of the modules around each."""
    kinds = {path: type(module).__name__ for path, module in model.named_modules(remove_duplicate=False)}
    return [_stored(name, value, _kinds_around(name, kinds)) for name, value in model.state_dict().items()]


def read_values(values: Mapping[str, Any]) -> list[StoredWeight]:
    """Those of a state_dict that are tensors."""
    return [_stored(name, value, ()) for name, value in values.items() if isinstance(value, torch.Tensor)]


def read_file(path: Path) -> list[StoredWeight]:
    """What torch.load reads as plain weights."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged or foreign file makes of it
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UsageError(f"{path} cannot be read as weights: {reason}") from error
    return read_values(content if isinstance(content, dict) else {})


def make_value(array: Array, dtype: str, name: str) -> torch.Tensor:
    """A tensor of its own; kinds that numpy lacks come as float32."""
    tensor = torch.from_numpy(np.array(array, order="C"))
    return tensor.to(getattr(torch, dtype))


def load_values(model: Any, values: Mapping[str, Any]) -> None:
    """Put values into a model; its other weights stay as they are."""
    model.load_state_dict(dict(values), strict=False)


def save_values(path: Path, values: Mapping[str, Any]) -> None:
    """As torch.save writes a state_dict; whole or not at all."""
    with open_whole(path) as file:
        torch.save(dict(values), file)


def _stored(name: str, value: torch.Tensor, kinds: tuple[str, ...]) -> StoredWeight:
    tensor = value.detach()
    is_plain = tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type != "meta"
    if not is_plain:
        raise UsageError(f"{name} is sparse, quantized or on the device meta: it has no numbers to convert")
    memory = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
    weight = Weight(
        name, tuple(tensor.shape), short_dtype(str(tensor.dtype)), kinds, memory if tensor.numel() else None
    )
    return StoredWeight(weight, _reader(tensor))


def _reader(tensor: torch.Tensor) -> Callable[[], Array]:
    is_known = tensor.dtype not in (torch.bfloat16,) and "float8" not in str(tensor.dtype)
    return lambda: np.asarray((tensor if is_known else tensor.float()).cpu().resolve_conj().resolve_neg().numpy())


def _kinds_around(name: str, kinds: Mapping[str, str]) -> tuple[str, ...]:
    parts = name.split(".")
    found = [kinds.get(".".join(parts[:place])) for place in range(len(parts))]
    return tuple(kind for kind in found if kind is not None) if None not in found else ()
