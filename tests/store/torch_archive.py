"""Makes `.pt` files piece by piece, without torch, so that any piece can be wrong."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def number(value: int) -> bytes:
    size = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def sequence(*values: bytes) -> bytes:
    return b"(" + b"".join(values) + b"t"


def tensor_pickle(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0, storage: str = "FloatStorage", key: str = "0"
) -> bytes:
    """What torch.save writes of a tensor."""
    place = sequence(text("storage"), name("torch", storage), text(key), text("cpu"), number(1))
    hooks = name("collections", "OrderedDict") + b")R"
    sizes = (sequence(*map(number, shape)), sequence(*map(number, strides)))
    arguments = sequence(place + b"Q", number(offset), *sizes, b"\x89", hooks)
    return b"\x80\x02" + name("torch._utils", "_rebuild_tensor_v2") + arguments + b"R."


def write_archive(path: Path, pickled: bytes, elements: bytes, **options: Any) -> Path:
    """A zip archive as torch.save makes it; `options` are those of zipfile."""
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/data/0", elements)
    return path
