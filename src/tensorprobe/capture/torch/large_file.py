"""Files of large tensors, as torch.save has them, written piece by piece: no second copy of the elements is made."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, BinaryIO

import torch

Kind = tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]
"""A dtype, a shape and strides."""
_STORAGES = {
    torch.float16: "HalfStorage",
    torch.bfloat16: "BFloat16Storage",
    torch.float32: "FloatStorage",
    torch.float64: "DoubleStorage",
    torch.complex64: "ComplexFloatStorage",
    torch.complex128: "ComplexDoubleStorage",
    torch.uint8: "ByteStorage",
    torch.int8: "CharStorage",
    torch.int16: "ShortStorage",
    torch.int32: "IntStorage",
    torch.int64: "LongStorage",
    torch.bool: "BoolStorage",
}
DTYPES = frozenset(_STORAGES)
_PICKLE, _ELEMENTS = "archive/data.pkl", "archive/data/0"
_ALIGNMENT = 64
_LOCAL_HEADER_BYTES = 30
_SIZES_BYTES = 20
"""What a file of more than 4 GB has in its header besides; always there, so that the place of the elements is known."""
_PADDING = 0x4246


def write_pieces(kind: Kind, pieces: Iterable[Any], file: BinaryIO) -> None:
    """`pieces`: the bytes of the elements, in the order in which they lie in memory."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in _read_small(kind[0]).items():
            if name == _PICKLE:
                archive.writestr(zipfile.ZipInfo(name), _describe(kind))
            elif name != _ELEMENTS:
                archive.writestr(zipfile.ZipInfo(name), content)
            else:
                with archive.open(_pad(name, file.tell()), "w", force_zip64=True) as elements:
                    for piece in pieces:
                        elements.write(piece)


@lru_cache
def _read_small(dtype: torch.dtype) -> dict[str, bytes]:
    """What torch.save writes for a tensor of one element."""
    buffer = io.BytesIO()
    torch.save(torch.ones(1, dtype=dtype), buffer)
    with zipfile.ZipFile(buffer) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _pad(name: str, position: int) -> zipfile.ZipInfo:
    """Its elements lie where a map of the file into memory can serve as a tensor."""
    info = zipfile.ZipInfo(name)
    begin = position + _LOCAL_HEADER_BYTES + len(name) + _SIZES_BYTES + 4
    length = -begin % _ALIGNMENT
    info.extra = _PADDING.to_bytes(2, "little") + length.to_bytes(2, "little") + bytes(length)
    return info


def _describe(kind: Kind) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=2).dump(_Tensor(kind))
    return buffer.getvalue()


class _Storage:
    """Stands for the elements."""

    def __init__(self, dtype: torch.dtype, count: int) -> None:
        self.persistent_id = ("storage", getattr(torch, _STORAGES[dtype]), "0", "cpu", count)


class _Tensor:
    """Stands for a tensor, in the way in which torch takes one apart."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        dtype, shape, strides = self._kind
        storage = _Storage(dtype, torch.Size(shape).numel())
        return torch._utils._rebuild_tensor_v2, (storage, 0, shape, strides, False, OrderedDict())


class _Pickler(pickle.Pickler):
    def persistent_id(self, item: Any) -> Any:
        return item.persistent_id if isinstance(item, _Storage) else None
