"""Tensor files as `torch.save` writes them, at a fraction of its cost.

Files of tensors with the same dtype, shape and strides differ in the bytes of their elements and in one checksum, which
stands in two places. The rest is taken from a file that torch.save made of such a tensor, once. What is large is
written by large_file.py, and what is not plain by torch.save itself.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import torch

from tensorprobe.capture.torch.large_file import DTYPES, write_pieces
from tensorprobe.capture.torch.layout import is_dense
from tensorprobe.capture.torch.tensor_copy import TensorCopy, memory_of

_MAX_BYTES = 64 << 20
_KINDS = 1024
_ELEMENTS = "/data/0"
_LOCAL_HEADER = struct.Struct("<26xHH")  # the lengths of the name and of what pads it
_DESCRIPTOR = b"PK\x07\x08"  # before the checksum that follows the elements
_CENTRAL = b"PK\x01\x02"  # begins an entry of the directory; the checksum is 16 bytes after it
_CRC = struct.Struct("<I")


def write_tensor(tensor: torch.Tensor, file: BinaryIO) -> None:
    """Write a tensor of the host, alone in its storage, as torch.save would."""
    frame = elements = None
    if tensor.layout is torch.strided and tensor.dtype in DTYPES and tensor.nbytes:
        storage = tensor.untyped_storage()
        is_shown = not (tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor())
        if is_shown and storage.nbytes() == tensor.nbytes and is_dense(tensor):
            kind = tensor.dtype, tuple(tensor.shape), tensor.stride()
            elements = memory_of(tensor)
            if tensor.nbytes > _MAX_BYTES:
                write_pieces(kind, [elements], file)
                return
            frame = make_frame(*kind)
    if frame is None or elements is None:
        torch.save(tensor, file)
        return
    checksum = _CRC.pack(zlib.crc32(elements))
    file.write(frame.head)
    file.write(elements)
    file.write(frame.tails[0])
    for tail in frame.tails[1:]:
        file.write(checksum)
        file.write(tail)


class TorchFiles:
    """Tensor files as torch has them."""

    def write(self, tensor: torch.Tensor, file: BinaryIO) -> None:
        """A tensor of the host, alone in its storage."""
        write_tensor(tensor, file)

    def write_copy(self, copy: TensorCopy, file: BinaryIO) -> None:
        if copy.is_for_pieces:
            write_pieces(copy.kind, copy.iter_pieces(), file)
        else:
            self.write(copy.to_host(), file)

    def read(self, path: Path) -> torch.Tensor:
        """What a file holds; for verify mode."""
        found: torch.Tensor = torch.load(path, weights_only=True)
        return found

    def stored(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a file of this tensor holds."""
        return tensor


@dataclass(frozen=True)
class Frame:
    """What is around the elements in a file, in the pieces that the checksum of the elements stands between."""

    head: bytes
    tails: tuple[bytes, ...]


@lru_cache(_KINDS)
def make_frame(dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> Frame | None:
    """The frame of tensors of one kind; None if torch.save writes something that is not known here."""
    buffer = io.BytesIO()
    torch.save(torch.empty_strided(shape, stride, dtype=dtype).fill_(1), buffer)
    content = buffer.getvalue()
    with zipfile.ZipFile(buffer) as archive:
        found = [entry for entry in archive.infolist() if entry.filename.endswith(_ELEMENTS)]
        directory = archive.start_dir
    if len(found) != 1 or found[0].compress_type != zipfile.ZIP_STORED:
        return None
    entry = found[0]
    name_length, extra_length = _LOCAL_HEADER.unpack_from(content, entry.header_offset)
    begin = entry.header_offset + 30 + name_length + extra_length
    end = begin + entry.file_size
    places = [end + len(_DESCRIPTOR), find_directory_checksum(content, directory, entry.filename)]
    checksum = _CRC.pack(entry.CRC)
    is_known = content[end : end + 4] == _DESCRIPTOR and all(content[at : at + 4] == checksum for at in places)
    if not is_known or content.count(checksum, end) != len(places):
        return None
    first, second = places
    return Frame(content[:begin], (content[end:first], content[first + 4 : second], content[second + 4 :]))


def find_directory_checksum(content: bytes, directory: int, name: str) -> int:
    """Where the checksum of an entry stands in the directory of an archive."""
    at = content.index(name.encode(), directory) - 46
    return at + 16 if content[at : at + 4] == _CENTRAL else 0
