"""The layout of a `.pt` file as torch.save writes it: a zip archive of a pickle and of storages, none compressed.

The pickle is read as a list of opcodes by `tensor_pickle`. Of the archive only what is needed is looked at, because
zipfile makes an object for every entry of a directory, however many a file claims.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from typing import Any

from tensorprobe.store.tensor_layout import TensorLayout, Unreadable
from tensorprobe.store.tensor_pickle import MAX_PICKLE_BYTES, PickledTensor, read_pickle
from tensorprobe.store.tensor_pickle import read_tree as read_pickled_tree

MAGIC = b"PK\x03\x04"
MAX_DIRECTORY_BYTES = 1 << 20
MAX_ENTRIES = 1024
MAX_TREE_BYTES = 1 << 26
"""Of the pickle and of the directory of a file that holds many tensors."""
MAX_TREE_ENTRIES = 1 << 18

_END = struct.Struct("<4s4xHHIIH")
_END_SIGN = b"PK\x05\x06"
_LOCATOR = struct.Struct("<4s4xQ4x")
_LOCATOR_SIGN = b"PK\x06\x07"
_END_64 = struct.Struct("<4s20xQQQQ")
_END_64_SIGN = b"PK\x06\x06"
_ENTRY = struct.Struct("<4s6xH8xIIHHH8xI")
_ENTRY_SIGN = b"PK\x01\x02"
_LOCAL = struct.Struct("<4s22xHH")
_TOO_LARGE = 0xFFFFFFFF  # the number stands in the entry's zip64 field instead
_ZIP_64 = 1

Place = tuple[int, int]
"""Where the bytes of an entry begin in the file, and how many they are."""


def read_layout(content: mmap.mmap | bytes) -> TensorLayout:
    """Where its tensor lies."""
    entries = _read_directory(content)
    pickled = _find_pickle(entries)
    return _place(content, entries, pickled, _read_pickle(content, entries[pickled]))


def read_tree(content: mmap.mmap | bytes) -> tuple[Any, Callable[[PickledTensor], TensorLayout]]:
    """Everything that a file of torch.save holds, with tensors as their pickle describes them; and where each lies."""
    entries = _read_directory(content, MAX_TREE_BYTES, MAX_TREE_ENTRIES)
    pickled = _find_pickle(entries)
    if entries[pickled][1] > MAX_TREE_BYTES:
        raise Unreadable("holds more than weights")
    tree = read_pickled_tree(_read(content, entries[pickled], MAX_TREE_BYTES))
    return tree, lambda tensor: _place(content, entries, pickled, tensor)


def _find_pickle(entries: dict[str, Place]) -> str:
    pickles = [name for name in entries if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise Unreadable("is a zip archive without a tensor")
    return pickles[0]


def _place(content: mmap.mmap | bytes, entries: dict[str, Place], pickled: str, tensor: PickledTensor) -> TensorLayout:
    folder = pickled.removesuffix("data.pkl")
    storage = entries.get(f"{folder}data/{tensor.storage}")
    if storage is None:
        raise Unreadable("lacks the elements of its tensor")
    begin, size_bytes = _locate(content, storage)
    order = entries.get(f"{folder}byteorder")
    return TensorLayout(
        tensor.dtype,
        tensor.shape,
        tensor.strides,
        begin,
        size_bytes,
        tensor.offset,
        is_big_endian=order is not None and _read(content, order, 8) == b"big",
        is_conjugated=tensor.is_conjugated,
        is_negated=tensor.is_negated,
    )


def _read_pickle(content: mmap.mmap | bytes, entry: Place) -> PickledTensor:
    if entry[1] > MAX_PICKLE_BYTES:
        raise Unreadable("holds more than a tensor")
    return read_pickle(_read(content, entry, MAX_PICKLE_BYTES))


def _read(content: mmap.mmap | bytes, entry: Place, limit: int) -> bytes:
    begin, size = _locate(content, entry)
    return content[begin : begin + min(size, limit)]


def _locate(content: mmap.mmap | bytes, entry: Place) -> Place:
    """From the place of an entry's own header to that of its bytes."""
    header, size = entry
    if header + _LOCAL.size > len(content):
        raise Unreadable("is damaged: its directory points behind its end")
    sign, name_length, extra_length = _LOCAL.unpack_from(content, header)
    begin = header + _LOCAL.size + name_length + extra_length
    if sign != MAGIC or begin + size > len(content):
        raise Unreadable("is damaged: its directory points to the wrong place")
    return begin, size


def _read_directory(
    content: mmap.mmap | bytes, max_bytes: int = MAX_DIRECTORY_BYTES, max_entries: int = MAX_ENTRIES
) -> dict[str, Place]:
    """The entries: where the header of each lies, and the size of its bytes."""
    at, size, count = _find_directory(content)
    if size > max_bytes or count > max_entries:
        raise Unreadable("holds more than a tensor")
    directory = content[at : at + size]
    if len(directory) < size:
        raise Unreadable("is damaged: its directory points behind its end")
    entries: dict[str, Place] = {}
    position = 0
    for _ in range(count):
        if position + _ENTRY.size > size:
            raise Unreadable("is damaged: its directory is too short")
        sign, method, packed, length, name_length, extra_length, comment_length, header = _ENTRY.unpack_from(
            directory, position
        )
        if sign != _ENTRY_SIGN:
            raise Unreadable("is damaged: its directory makes no sense")
        position += _ENTRY.size
        name = directory[position : position + name_length].decode("utf-8", "replace")
        position += name_length
        extra = directory[position : position + extra_length]
        position += extra_length + comment_length
        length, packed, header = _widen(extra, length, packed, header)
        if method != 0 or length != packed:
            raise Unreadable("is compressed; torch.save writes files that are not")
        if name in entries:  # torch would read the one, and a person with another tool see the other
            raise Unreadable("is damaged: two of its entries have one name")
        entries[name] = (header, length)
    return entries


def _widen(extra: bytes, *numbers: int) -> tuple[int, ...]:
    """The numbers of an entry; those that did not fit into it stand, in their order, in its zip64 field."""
    if _TOO_LARGE not in numbers:
        return numbers
    position = 0
    while position + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, position)
        position += 4
        if kind == _ZIP_64:
            wide = struct.iter_unpack("<Q", extra[position : position + size // 8 * 8])
            try:
                return tuple(next(wide)[0] if number == _TOO_LARGE else number for number in numbers)
            except (StopIteration, RuntimeError):
                break
        position += size
    raise Unreadable("is damaged: its directory makes no sense")


def _find_directory(content: mmap.mmap | bytes) -> tuple[int, int, int]:
    """Where it begins, its size in bytes, its number of entries. torch.save writes no comment behind it."""
    end = len(content) - _END.size
    if end < 0 or content[end : end + 4] != _END_SIGN:
        raise Unreadable("is cut off")
    _, _, count, size, at, _ = _END.unpack_from(content, end)
    locator = end - _LOCATOR.size
    if locator >= 0 and content[locator : locator + 4] == _LOCATOR_SIGN:
        _, wide = _LOCATOR.unpack_from(content, locator)
        if wide + _END_64.size > locator:
            raise Unreadable("is damaged: its directory points behind its end")
        sign, _, count, size, at = _END_64.unpack_from(content, wide)
        if sign != _END_64_SIGN:
            raise Unreadable("is damaged: its directory makes no sense")
    return at, size, count
