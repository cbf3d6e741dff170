"""Files of weights, `.pt`, `.pth`, `.bin` and `.safetensors`, as numpy arrays, without the framework that wrote them.

A file may come from anyone: nothing is unpickled, and no size is believed before it was held against that of the file.
Of a checkpoint that holds more than weights (an optimizer, an epoch), the weights are taken.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorprobe.errors import DumpError
from tensorprobe.model.weight import Weight
from tensorprobe.store import torch_file
from tensorprobe.store.tensor_file import map_file
from tensorprobe.store.tensor_layout import TensorLayout, Unreadable, contiguous_strides, make_array
from tensorprobe.store.tensor_pickle import PickledTensor

SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")
_KEYS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights")
"""Where a checkpoint that holds more keeps its weights."""
_MAX_HEADER_BYTES = 1 << 26
_SAFETENSORS_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight in a file, and how to get its numbers."""

    weight: Weight
    read: Callable[[], Array]


def read_weight_file(path: Path) -> list[StoredWeight]:
    """All weights of a file, in its order."""
    try:
        content = map_file(path)
        if content[:4] == torch_file.MAGIC:
            return [_refusing(stored, path) for stored in _read_torch(content)]
        if path.suffix == ".safetensors":
            return [_refusing(stored, path) for stored in _read_safetensors(content)]
        raise Unreadable("is neither a file of torch.save nor of safetensors")
    except Unreadable as error:
        hint = "; write its state_dict: torch.save(model.state_dict(), path)" if "holds a pickle" in str(error) else ""
        raise DumpError(f"{path} {error}{hint}") from None
    except OSError as error:
        raise DumpError(f"{path} cannot be read ({error.strerror or error})") from error


def _refusing(stored: StoredWeight, path: Path) -> StoredWeight:
    """The same, with an error that names the file and the weight."""

    def read() -> Array:
        try:
            return stored.read()
        except Unreadable as error:
            raise DumpError(f"{stored.weight.name} in {path} {error}") from None

    return StoredWeight(stored.weight, read)


def _read_torch(content: mmap.mmap | bytes) -> Iterator[StoredWeight]:
    tree, locate = torch_file.read_tree(content)
    found = _find_weights(tree)
    if not found:
        raise Unreadable("holds no weights: it has no dictionary of names and tensors")
    for name, tensor in found.items():
        memory = (tensor.storage, tensor.offset, tensor.shape, tensor.strides)
        yield StoredWeight(Weight(name, tensor.shape, tensor.dtype, memory=memory), _reader(content, locate, tensor))


def _reader(
    content: mmap.mmap | bytes, locate: Callable[[PickledTensor], TensorLayout], tensor: PickledTensor
) -> Callable[[], Array]:
    return lambda: make_array(content, locate(tensor))


def _find_weights(tree: Any) -> dict[str, PickledTensor]:
    """The dictionary itself, or that below one of the usual keys."""
    if not isinstance(tree, dict):
        return {}
    own = {name: value for name, value in tree.items() if isinstance(value, PickledTensor)}
    below = (_find_weights(tree[key]) for key in _KEYS if isinstance(tree.get(key), dict))
    return own or next((found for found in below if found), {})


def _read_safetensors(content: mmap.mmap | bytes) -> Iterator[StoredWeight]:
    if len(content) < 8:
        raise Unreadable("is cut off")
    (size,) = struct.unpack("<Q", content[:8])
    if size > min(_MAX_HEADER_BYTES, len(content) - 8):
        raise Unreadable("is cut off")
    try:
        header = json.loads(content[8 : 8 + size])
        items = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
        for name, entry in items:
            yield _read_entry(content, 8 + size, name, entry)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Unreadable("has a header that makes no sense") from None


def _read_entry(content: mmap.mmap | bytes, begin: int, name: str, entry: Any) -> StoredWeight:
    dtype, shape = _SAFETENSORS_DTYPES[entry["dtype"]], tuple(map(int, entry["shape"]))
    first, last = map(int, entry["data_offsets"])
    if first < 0:
        raise ValueError
    layout = TensorLayout(dtype, shape, contiguous_strides(shape), begin + first, last - first)
    return StoredWeight(Weight(name, shape, dtype), lambda: make_array(content, layout))
