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
from tensorprobe.store.tensor_layout import (
    TensorLayout,
    Unreadable,
    check_shape,
    contiguous_strides,
    is_size,
    make_array,
    quote,
)
from tensorprobe.store.tensor_pickle import PickledTensor, find_tensor

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
    """The dictionary itself, or that below one of the usual keys; each is looked at once, wherever else it stands."""
    waiting, seen = [tree], set()
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        found = {
            _check_name(name): tensor
            for name, tensor in zip(node, map(find_tensor, node.values()), strict=True)
            if tensor
        }
        if found:
            return found
        waiting.extend(node[key] for key in reversed(_KEYS) if key in node)
    return {}


def _check_name(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:  # half of a surrogate pair: neither framework could write it
        raise Unreadable(f"has a weight of the name {quote(name)}, which is no text") from None
    return name


def _read_safetensors(content: mmap.mmap | bytes) -> Iterator[StoredWeight]:
    if len(content) < 8:
        raise Unreadable("is cut off")
    (size,) = struct.unpack("<Q", content[:8])
    if size > min(_MAX_HEADER_BYTES, len(content) - 8):
        raise Unreadable("is cut off")
    for name, entry in _read_header(content[8 : 8 + size]).items():
        if name != "__metadata__":
            yield _read_entry(content, 8 + size, _check_name(name), entry)


def _read_header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text, object_pairs_hook=_refuse_doubles)
    except (ValueError, RecursionError):
        raise Unreadable("has a header that makes no sense") from None
    if not isinstance(header, dict):
        raise Unreadable("has a header that makes no sense")
    return header


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("one name stands for two weights")
    return found


def _read_entry(content: mmap.mmap | bytes, begin: int, name: str, entry: Any) -> StoredWeight:
    fields = entry if isinstance(entry, dict) else {}
    dtype, place = _SAFETENSORS_DTYPES.get(str(fields.get("dtype"))), fields.get("data_offsets")
    if dtype is None or not isinstance(place, list) or len(place) != 2 or not all(map(is_size, place)):
        raise Unreadable("has a header that makes no sense")
    shape = check_shape(fields.get("shape"))
    layout = TensorLayout(dtype, shape, contiguous_strides(shape), begin + place[0], place[1] - place[0])
    return StoredWeight(Weight(name, shape, dtype), lambda: make_array(content, layout))
