"""Checksums: `md5`, which is a CRC-32 as in msprobe, and `hash`, a 64-bit hash in which every element is mixed with its
position.

The CRC-32 is that of the bytes in logical order, whatever the dtype: msprobe 26.2.0 takes the 16 bits of a bfloat16 and
the 8 bits of a float8 as they are, too.

The hash of elements w_0, w_1, … (their bits as unsigned numbers, in logical order) is the sum over i of mix(w_i) *
weight(i), modulo 2**64, with mix(w) = (w * A) ^ ((w * A) >> 32) and weight(i) = (((2i + 1) * B) ^ (((2i + 1) * B) >>
32)) | 1. A sum can be computed in any order, by any number of threads, and the weights make it see permutations and
transposes. An element of 128 bits counts as two.

Of a sparse tensor both take its indices, and then its values; it is not made dense.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch

from tensorprobe.capture import native

_A = 0x9E3779B97F4A7C15
_B = 0xD6E8FEB86659FD93
_CHUNK = 1 << 17  # a chunk of 64-bit words and its weights stay in the cache
_DEVICE_CHUNK = 1 << 22
_KEPT_WEIGHTS = 1 << 20
_MAX_EXPANDED = 1 << 31
_LOW_WORD = 0xFFFFFFFF
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


def crc32_digest(tensor: torch.Tensor) -> str:
    """CRC-32 of the bytes in logical order, 8 hex digits."""
    checksum = 0
    for part in dense_parts(tensor):
        for chunk in chunks_in_order(part, _CHUNK):
            checksum = zlib.crc32(as_bytes(chunk), checksum)
    return f"{checksum:08x}"


def hash_digest(tensor: torch.Tensor) -> str:
    """The positional hash, 16 hex digits."""
    parts = dense_parts(tensor)
    device = parts[0].device
    size = _CHUNK if parts[0].is_cpu else _DEVICE_CHUNK
    total = torch.zeros((), dtype=torch.int64, device=device)
    start = known = 0
    for part in parts:
        for chunk in chunks_in_order(part, size):
            bits = chunk.view(_BITS[chunk.element_size()])
            width = 8 * bits.element_size()
            found = native.hash_memory(bits.data_ptr(), bits.numel(), width, start) if bits.is_cpu else None
            known += found or 0
            if found is None:
                total += (_mix(as_words(bits), _A) * _weights(start, start + bits.numel(), device)).sum()
            start += bits.numel()
    return f"{(int(total) + known) & 0xFFFFFFFFFFFFFFFF:016x}"


def dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensor itself; of a sparse one, the tensors that it consists of."""
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return [tensor.indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]


def chunks_in_order(tensor: torch.Tensor, size: int) -> Iterator[torch.Tensor]:
    """All elements in logical order, in pieces: an expanded tensor is never there as a whole."""
    if tensor.numel() > _MAX_EXPANDED and 0 in tensor.stride():
        raise ValueError(f"a few elements, expanded to {tensor.numel():,}")
    while tensor.dim() and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.numel() <= size or tensor.is_contiguous():
        yield from in_logical_order(tensor).split(size)
        return
    rows = max(1, size * tensor.shape[0] // tensor.numel())
    for part in tensor.split(rows):
        yield from chunks_in_order(part, size)


def in_logical_order(tensor: torch.Tensor) -> torch.Tensor:
    """All elements in one line, on the tensor's device."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)


def as_bytes(flat: torch.Tensor) -> Any:
    """The bytes of a tensor on the host. A copy: `numpy()` on the user's own memory would forbid resizing it."""
    return memoryview(flat.view(torch.uint8).to("cpu", copy=True).numpy()) if flat.numel() else b""


def as_words(bits: torch.Tensor) -> torch.Tensor:
    """Integers of any width as int64 with the same bits, the upper ones zero."""
    words = bits.to(torch.int64)
    width = 8 * bits.element_size()
    return words if width == 64 else words & ((1 << width) - 1)


def _weights(start: int, stop: int, device: torch.device) -> torch.Tensor:
    if stop <= _KEPT_WEIGHTS:
        return _first_weights(device)[start:stop]
    return _make_weights(start, stop, device)


@lru_cache
def _first_weights(device: torch.device) -> torch.Tensor:
    return _make_weights(0, _KEPT_WEIGHTS, device)


def _make_weights(start: int, stop: int, device: torch.device) -> torch.Tensor:
    index = torch.arange(start, stop, dtype=torch.int64, device=device)
    return _mix(2 * index + 1, _B) | 1


def _mix(words: torch.Tensor, factor: int) -> torch.Tensor:
    product = words * _signed(factor)
    return product ^ ((product >> 32) & _LOW_WORD)


def _signed(number: int) -> int:
    """The int64 with the bits of an unsigned 64-bit number."""
    return number - (1 << 64) if number >= 1 << 63 else number
