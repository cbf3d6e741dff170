"""Files that hold many tensors by name: of torch.save and of safetensors.

One tensor of such a file has a path, as a file of its own would: that of the file, and below it the name of the tensor,
`Pass00000.pt/model.layers.0`. Characters that no name of a file may have are written as in an address, `%2F`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from tensorprobe.errors import DumpError
from tensorprobe.store import stored_file, torch_file
from tensorprobe.store.tensor_file import map_file
from tensorprobe.store.tensor_layout import Unreadable, make_array
from tensorprobe.store.tensor_pickle import PickledTensor, find_tensor
from tensorprobe.store.weight_file import read_weight_file

Array = np.ndarray[Any, Any]
LONE = "value"


@dataclass(frozen=True)
class Member:
    """One tensor of a file."""

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Array]


def member_name(file: str, name: str) -> str:
    """How a record names a tensor of a file in the same folder."""
    return f"{file}/{quote(name, safe=' ')}"


def member_path(folder: Path, data_name: str) -> Path:
    """Where that is; both of its parts are plain names."""
    file, _, name = data_name.partition("/")
    if any(part in ("", ".", "..") or set("/\\\0") & set(part) for part in (file, name)):
        raise DumpError(f"{folder}: the tensor {data_name!r} is not one of a file in it; it is not opened.")
    return folder / file / name


def open_member(path: Path) -> Array:
    """The tensor at such a path."""
    member = read_members(path.parent).get(unquote(path.name))
    if member is None:
        raise DumpError(f"{path.name} is missing in {path.parent.name}")
    try:
        return member.read()
    except Unreadable as error:
        raise DumpError(f"{path.name} in {path.parent.name} {error}") from None


def read_members(path: Path) -> dict[str, Member]:
    """All tensors of a file, in its order; those of a list are numbered, `name[0]`, and one without a name is
    `value`."""
    stored_file.bring(path)
    try:
        status = path.stat()
    except OSError as error:
        raise DumpError(f"{stored_file.show(path)} cannot be read ({error.strerror or error})") from error
    return _read_members(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _read_members(path: Path, modified_ns: int, size_bytes: int) -> dict[str, Member]:
    """Read again when the file is another one."""
    if path.suffix == ".safetensors":
        found = read_weight_file(path)
        return {one.weight.name: Member(one.weight.dtype, one.weight.shape, one.read) for one in found}
    try:
        content = map_file(path)
        tree, locate = torch_file.read_tree(content)
        tensors = dict(_iter_tensors(tree))
    except Unreadable as error:
        raise DumpError(f"{path.name} {error}") from None

    def reading(tensor: PickledTensor) -> Callable[[], Array]:
        return lambda: make_array(content, locate(tensor))

    return {name: Member(tensor.dtype, tensor.shape, reading(tensor)) for name, tensor in tensors.items()}


def _iter_tensors(tree: Any) -> Iterator[tuple[str, PickledTensor]]:
    tree = {LONE: tree} if find_tensor(tree) is not None else tree
    for name, value in tree.items() if isinstance(tree, dict) else ():
        items = {f"{name}[{index}]": item for index, item in enumerate(value)} if isinstance(value, list) else {}
        for place, item in ({name: value} | items).items():
            tensor = find_tensor(item)
            if tensor is not None:
                yield str(place), tensor
