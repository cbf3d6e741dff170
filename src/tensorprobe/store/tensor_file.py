"""Tensor files of a dump, `.npy` and `.pt`, as numpy arrays over mapped memory.

A file may come from anyone. Nothing in it is unpickled, no size in it is believed before it was held against the size
of the file, and what cannot be read is a DumpError that fits into a cell of a table: "x.pt is cut off". The path was
checked by `RankDump.tensor_path`.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from tensorprobe.errors import DumpError
from tensorprobe.regular_file import NOT_REGULAR, open_regular
from tensorprobe.store import npy_file, stored_file, torch_file
from tensorprobe.store.tensor_layout import NotDense, Unreadable, make_array

_CONTAINER_SUFFIXES = (".pt", ".safetensors")
_SMALL_BYTES = 1 << 20
"""To read less takes no longer than to map it and look at where its tensor lies."""
_LEGACY_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"  # what torch.save wrote before it wrote zip archives
_PICKLE = b"\x80"


class NotDenseError(DumpError):
    """The file is whole and holds a tensor, but one that is no plain array: sparse or quantized."""


def open_tensor(path: Path, dtype: str | None = None) -> np.ndarray[Any, Any]:
    """The tensor of a file. `dtype` is what the record says: only needed where the file itself cannot tell."""
    if is_member(path):
        from tensorprobe.store.container import open_member  # which reads files by means of this one

        return open_member(path)
    try:
        content = map_file(path)
        layout = _read_layout(content, dtype)
        return make_array(content, layout)
    except NotDense as error:
        raise NotDenseError(f"{path.name} {error}") from None
    except Unreadable as error:
        raise DumpError(f"{path.name} {error}") from None
    except OSError as error:
        raise DumpError(f"{path.name} cannot be read ({error.strerror or error})") from error


def identify_bytes(path: Path) -> bytes | None:
    """What files of the same bytes have in common, and no other file has. None for a large file, and for what cannot be
    read: there it is left to whoever opens it."""
    try:
        with open_regular(stored_file.bring(path)) as file:
            is_small = os.fstat(file.fileno()).st_size <= _SMALL_BYTES
            return hashlib.blake2b(file.read()).digest() if is_small else None
    except OSError:
        return None


def is_member(path: Path) -> bool:
    """Is it one tensor of a file of many? Its path is then that of the file, and below it the name of the tensor."""
    return path.parent.suffix in _CONTAINER_SUFFIXES and stored_file.is_file(path.parent)


def forget_pages(array: np.ndarray[Any, Any]) -> None:
    """Give back the memory of what has been read of a mapped file, so that a large one does not fill it."""
    base = array
    while isinstance(base, np.ndarray):
        base = base.base  # type: ignore[assignment]
    if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)


def _read_layout(content: mmap.mmap | bytes, dtype: str | None) -> Any:
    if content[: len(npy_file.MAGIC)] == npy_file.MAGIC:
        return npy_file.read_layout(content, dtype)
    if content[: len(torch_file.MAGIC)] == torch_file.MAGIC:
        return torch_file.read_layout(content)
    if not content:
        raise Unreadable("is empty")
    if content[: len(_LEGACY_TORCH)] == _LEGACY_TORCH:
        raise Unreadable("is in the format of torch before 1.6, which is a pickle")
    if content[:1] == _PICKLE:
        raise Unreadable("holds a pickle, not a tensor")
    raise Unreadable("is neither a .npy nor a .pt file")


def map_file(path: Path) -> mmap.mmap | bytes:
    """The bytes of a regular file, read when they are looked at."""
    try:
        with open_regular(stored_file.bring(path)) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            # An empty file cannot be mapped.
            return mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ) if size_bytes else b""
    except FileNotFoundError:
        raise Unreadable("is missing") from None
    except IsADirectoryError:
        raise Unreadable(f"is {NOT_REGULAR}") from None
    except OSError as error:
        if error.strerror == NOT_REGULAR:
            raise Unreadable(f"is {NOT_REGULAR}") from None
        raise
    except (ValueError, OverflowError):  # it has become shorter, or is larger than all addresses
        raise Unreadable("cannot be read as its size says") from None
